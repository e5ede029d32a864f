"""One blob on its way down: continued where a connection dropped, and checked at its end."""

from __future__ import annotations

import hashlib
import http.client
import io
from typing import BinaryIO

from slipway.errors import IntegrityError
from slipway.image.descriptor import Descriptor
from slipway.image.registry.failures import unreachable
from slipway.image.registry.transport import Exchange, Transport

# Bytes after which a connection that drops has been worth it, and drops are counted anew.
_PROGRESS = 1 << 20


def open_blob(
    transport: Transport, repository: str, path: str, scope: str, blob: Descriptor
) -> BinaryIO:
    """A stream of a blob. Its last read raises where the bytes are not the blob's.

    Args:
        repository: as errors name it.
        path: where the blob is, `/v2/<name>/blobs/<digest>`.

    Raises, here or while it is read:
        NetworkError: connections dropped more often than is sensible.
        RegistryError: the registry refused, or does not have the blob.
        IntegrityError: size or digest are not the descriptor's.
    """
    return io.BufferedReader(_Reader(transport, repository, path, scope, blob), 256 << 10)


class _Reader(io.RawIOBase):
    def __init__(
        self, transport: Transport, repository: str, path: str, scope: str, blob: Descriptor
    ) -> None:
        self._transport, self._repository = transport, repository
        self._path, self._scope, self._blob = path, scope, blob
        self._hash = hashlib.new(blob.digest.partition(":")[0])
        self._position = 0
        self._backoff, self._settled = transport.backoff(), 0
        self._exchange: Exchange | None = None
        self._checked = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        view = memoryview(buffer)
        while not self._checked:
            exchange = self._exchange = self._exchange or self._open()
            try:
                # One byte more than is left shows a blob that is too long.
                count = exchange.readinto(view[: self._blob.size - self._position + 1])
                broken: Exception | None = None
            except (OSError, http.client.HTTPException) as error:
                count, broken = 0, error
            if count:
                return self._take(view[:count])
            if self._position == self._blob.size:
                self._check()
            else:
                self._resume(broken or ConnectionResetError("the connection ended in its middle"))
        return 0

    def close(self) -> None:
        self._drop()
        super().close()

    def _open(self) -> Exchange:
        start, size = self._position, self._blob.size
        headers = {"Range": f"bytes={start}-"} if start else {}
        exchange = self._transport.stream(self._path, scope=self._scope, headers=headers)
        # A server without ranges answers 200, from the start.
        skipped = start if exchange.status == 200 else 0
        length = exchange.headers.get("content-length", "")
        if length.isdecimal() and int(length[:18]) != size - start + skipped:
            exchange.close()
            raise IntegrityError(
                f"{self._repository}: blob {self._blob.digest} is said to have {size} bytes, and "
                f"{int(length[:18]) + start - skipped} came"
            )
        if exchange.status == 206 and not exchange.headers.get("content-range", "").startswith(
            f"bytes {start}-"
        ):
            exchange.close()
            raise IntegrityError(f"{self._repository}: another part came than was asked for")
        while skipped > 0 and (block := exchange.read(min(_PROGRESS, skipped))):
            skipped -= len(block)
        return exchange

    def _take(self, data: memoryview) -> int:
        self._position += len(data)
        if self._position > self._blob.size:
            self._drop()
            raise IntegrityError(
                f"{self._repository}: blob {self._blob.digest} is longer than its "
                f"{self._blob.size} bytes"
            )
        self._hash.update(data)
        return len(data)

    def _check(self) -> None:
        found = f"{self._hash.name}:{self._hash.hexdigest()}"
        if found != self._blob.digest:
            raise IntegrityError(
                f"{self._repository}: blob {self._blob.digest} came with the bytes of {found}",
                "the registry's storage or something on the way damages data; push it again",
            )
        self._checked = True
        self._drop()

    def _resume(self, error: Exception) -> None:
        self._drop()
        if self._position >= self._settled + _PROGRESS:
            self._backoff, self._settled = self._transport.backoff(), self._position
        if not self._backoff.wait():
            raise unreachable(
                "GET", self._transport.locate(self._path), error, self._backoff.attempts, 0.0
            ) from error

    def _drop(self) -> None:
        if self._exchange is not None:
            self._exchange.close()
            self._exchange = None
