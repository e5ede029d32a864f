"""One blob on its way up: in one request, else in chunks, continued where the registry has it.

OCI distribution spec 1.1, "Pushing blobs". A registry may be unable to say how far an upload got,
or forget it (docker-registry does after a dropped connection): then it begins again.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable
from typing import BinaryIO

from slipway.errors import IntegrityError, NetworkError
from slipway.image.model import Layer
from slipway.image.registry.failures import DroppedError, RefusedError
from slipway.image.registry.retry import RETRIED
from slipway.image.registry.transport import Body, Transport

log = logging.getLogger(__name__)

# What a request's body falls back to, one after the other, when a proxy refuses more (bytes).
# nginx allows 1 MiB where nothing is configured, Cloudflare 100 MB.
CHUNKS = (64 << 20, 16 << 20, 4 << 20, 1 << 20)
# Connections that drop on a body larger than a chunk, one after the other, before chunks are tried:
# some proxies cut off where others answer 413.
_DROPS = 2
# An upload that the registry has lost, or sees otherwise than we do, begins again.
_LOST = frozenset({404, 416})
_LOST_CODES = frozenset({"BLOB_UPLOAD_INVALID", "BLOB_UPLOAD_UNKNOWN", "RANGE_INVALID"})
_RANGE = re.compile(r"(?:bytes=)?0-(\d{1,18})")


class Upload:
    """One blob on its way into one repository.

    Args:
        transport: the registry.
        uploads: path under which uploads begin, `/v2/<name>/blobs/uploads/`.
        scope: what the token must allow.
        layer: what to upload; opened again for every attempt.
        location: an upload that the registry has begun already.
        sent: called with the bytes that are on the other side; may raise to give up.
    """

    def __init__(
        self,
        transport: Transport,
        uploads: str,
        scope: str,
        layer: Layer,
        location: str = "",
        sent: Callable[[int], None] | None = None,
    ) -> None:
        self._transport, self._uploads, self._scope = transport, uploads, scope
        self._layer, self._size = layer, layer.descriptor.size
        self._location = location
        self._sent = sent
        self._offset = 0
        self._smallest = 0

    def run(self) -> None:
        """Bring the blob there.

        Raises:
            NetworkError: the connection dropped more often than is sensible.
            RegistryError: refused; by a proxy even with the smallest chunks.
            IntegrityError: the blob is damaged, here or on its way.
        """
        backoff, furthest, drops = self._transport.backoff(), 0, 0
        while True:
            limit = self._transport.upload_limit
            try:
                self._attempt(limit)
                return
            except RefusedError as error:
                if error.status == 413:
                    self._shrink(limit, error)
                elif error.code == "DIGEST_INVALID":
                    self._check_source()
                    self._location = ""
                    if not backoff.wait():
                        raise
                elif not self._worth_another(error) or not backoff.wait(error.retry_after):
                    raise
            except NetworkError as error:
                drops += 1
                if isinstance(error, DroppedError) and drops % _DROPS == 0:
                    self._shrink(limit, error)
                if not backoff.wait():
                    raise
            self._find_offset()
            if not self._location and self._arrived():
                return
            if self._offset >= furthest + min(CHUNKS[-1], self._size or 1):
                furthest, drops, backoff = self._offset, 0, self._transport.backoff()

    def _attempt(self, limit: int) -> None:
        """Send what is missing, in bodies of at most `limit` bytes (0: any)."""
        if not self._location:
            self._begin()
        if self._offset == 0 and (not limit or self._size <= limit):
            self._finish(self._body(0, self._size))
            return
        while self._offset < self._size:
            length = min(limit or self._size, self._size - self._offset)
            response = self._transport.request(
                "PATCH",
                self._location,
                scope=self._scope,
                headers={
                    "Content-Type": "application/octet-stream",
                    "Content-Range": f"{self._offset}-{self._offset + length - 1}",
                },
                body=self._body(self._offset, length),
                accept=(201, 202, 204),
                tries=1,
            )
            self._location = response.header("location") or self._location
            self._offset += length
        self._finish(None)

    def _begin(self) -> None:
        response = self._transport.request(
            "POST", self._uploads, scope=self._scope, accept=(202,), tries=1
        )
        self._location, self._offset = response.header("location"), 0
        least = response.header("oci-chunk-min-length")
        self._smallest = int(least[:12]) if least.isdecimal() else 0

    def _finish(self, body: Body | None) -> None:
        digest = self._layer.descriptor.digest
        url = f"{self._location}{'&' if '?' in self._location else '?'}digest={digest}"
        response = self._transport.request(
            "PUT",
            url,
            scope=self._scope,
            headers={"Content-Type": "application/octet-stream"},
            body=body,
            accept=(201, 204),
            tries=1,
        )
        said = response.header("docker-content-digest")
        if said and said != digest:
            raise IntegrityError(f"{self._transport.host} stored blob {digest} as {said[:80]}")

    def _body(self, start: int, length: int) -> Body:
        def sent(done: int) -> None:
            if self._sent is not None:
                self._sent(start + done)

        return Body(lambda: _from(self._layer, start), length, sent)

    def _find_offset(self) -> None:
        """Ask how far the upload got; begin again where that cannot be said."""
        if not self._location:
            return
        try:
            response = self._transport.request(
                "GET", self._location, scope=self._scope, accept=(204,), tries=2
            )
        except (RefusedError, NetworkError) as error:
            log.info("blob %s begins again: %s", self._layer.descriptor.digest, error.what)
            self._location, self._offset = "", 0
            return
        found = _RANGE.fullmatch(response.header("range"))
        # "0-0" is said both of no byte and of one.
        offset = int(found[1]) + 1 if found and found[1] != "0" else 0
        if not 0 < offset <= self._size:
            self._location, self._offset = "", 0
            return
        self._location = response.header("location") or self._location
        self._offset = offset

    def _arrived(self) -> bool:
        """Whether the registry has the blob: the answer to our last request may have been lost."""
        path = self._uploads.removesuffix("uploads/") + self._layer.descriptor.digest
        accept = (200, 302, 303, 307, 308, 404)
        response = self._transport.request("HEAD", path, scope=self._scope, accept=accept)
        return response.status != 404

    def _shrink(self, limit: int, error: RefusedError | DroppedError) -> None:
        """Lower the transport's limit, for this blob and all that follow."""
        body = min(limit or self._size, self._size - self._offset)
        fitting = [size for size in CHUNKS if self._smallest <= size < body]
        if not fitting:
            if isinstance(error, DroppedError):
                return
            raise RefusedError(
                f"{error.what}, for a body of {body} bytes",
                error.remedy,
                error.status,
                error.code,
            ) from error
        smaller = min(fitting[0], self._transport.upload_limit or fitting[0])
        log.info(
            "uploads to %s go on in chunks of %d MiB: %s",
            self._transport.host,
            smaller >> 20,
            error.what,
        )
        self._transport.upload_limit = smaller

    def _worth_another(self, error: RefusedError) -> bool:
        if error.code in _LOST_CODES or (error.status in _LOST and self._location):
            return True
        return error.status in RETRIED

    def _check_source(self) -> None:
        """Tell a blob that is damaged here from one damaged on its way.

        Raises:
            IntegrityError: it is damaged here.
        """
        blob = self._layer.descriptor
        found = hashlib.new(blob.digest.partition(":")[0])
        with self._layer.open() as stream:
            while block := stream.read(1 << 20):
                found.update(block)
        if f"{found.name}:{found.hexdigest()}" != blob.digest:
            raise IntegrityError(
                f"blob {blob.digest} is damaged where it is taken from: its bytes have the digest "
                f"{found.name}:{found.hexdigest()}",
                "remove it there and build again",
            )


def _from(layer: Layer, start: int) -> BinaryIO:
    """The layer's blob from an offset on; read up to there where its stream cannot seek."""
    stream = layer.open()
    if start and stream.seekable():
        stream.seek(start)
        return stream
    while start > 0 and (block := stream.read(min(1 << 20, start))):
        start -= len(block)
    return stream
