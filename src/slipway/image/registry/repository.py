"""One repository of a registry: its blobs, manifests, tags and referrers."""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Iterator
from typing import BinaryIO
from urllib.parse import quote

from slipway.errors import IntegrityError, RegistryError
from slipway.image.descriptor import INDEX, MANIFEST, MANIFEST_TYPES, Descriptor
from slipway.image.model import Layer, sha256
from slipway.image.registry.auth import Credentials
from slipway.image.registry.transport import (
    ATTEMPTS,
    Body,
    DroppedError,
    RefusedError,
    Response,
    Transport,
)

_ACCEPT = ", ".join(MANIFEST_TYPES)
_RANGE = re.compile(r"(?:bytes=)?0-(\d+)")
# What an upload falls back to, one after the other, when a proxy refuses a larger body (bytes).
CHUNKS = (64 << 20, 16 << 20, 4 << 20, 1 << 20)


class Registry:
    """A registry by its host, e.g. `127.0.0.1:5000` or `docker.io`."""

    def __init__(
        self,
        host: str,
        *,
        insecure: bool | None = None,
        credentials: Credentials | None = None,
        attempts: int = ATTEMPTS,
    ) -> None:
        self.host = host
        self.transport = Transport(
            host, insecure=insecure, credentials=credentials, attempts=attempts
        )

    def repository(self, name: str) -> Repository:
        """A repository by its name, e.g. `team/keel`."""
        return Repository(self.transport, name)


class Repository:
    """One repository. It is a `BlobSource`: `open` streams a blob and checks it."""

    def __init__(self, transport: Transport, name: str) -> None:
        self._transport = transport
        self.name = name

    def __str__(self) -> str:
        return f"{self._transport.host}/{self.name}"

    @property
    def requests(self) -> int:
        """How many requests the registry was sent so far."""
        return self._transport.requests

    def _scope(self, access: str) -> str:
        return f"repository:{self.name}:{access}"

    # -- manifests

    def resolve(self, identifier: str) -> Descriptor | None:
        """What a tag or digest names, or None."""
        response = self._manifest_request("HEAD", identifier)
        if response.status == 404:
            return None
        digest, size = response.header("docker-content-digest"), response.header("content-length")
        if not digest or not size:
            found = self.manifest(identifier)
            return found[0] if found else None
        return Descriptor(response.header("content-type") or MANIFEST, digest, int(size))

    def manifest(self, identifier: str) -> tuple[Descriptor, bytes] | None:
        """A manifest and its bytes, checked, or None where there is none.

        Raises:
            IntegrityError: the bytes are not what their digest says.
        """
        response = self._manifest_request("GET", identifier)
        if response.status == 404:
            return None
        digest = sha256(response.body)
        wanted = identifier if ":" in identifier else response.header("docker-content-digest")
        if wanted and wanted != digest:
            raise IntegrityError(f"{self}: manifest {identifier} came as {digest}, not {wanted}")
        kind = response.header("content-type").partition(";")[0] or MANIFEST
        return Descriptor(kind, digest, len(response.body)), response.body

    def _manifest_request(self, method: str, identifier: str) -> Response:
        return self._transport.request(
            method,
            f"/v2/{self.name}/manifests/{quote(identifier, safe=':')}",
            scope=self._scope("pull"),
            headers={"Accept": _ACCEPT},
            accept=frozenset({200, 404}),
        )

    def put_manifest(self, data: bytes, media_type: str, identifier: str) -> Descriptor:
        """Store a manifest under a tag or its own digest.

        An answer of 500 is tried again, and what is there is compared: some registries answer so to
        a write that did take place.

        Raises:
            RegistryError: it is not there afterwards.
        """
        descriptor = Descriptor(media_type, sha256(data), len(data))
        try:
            response = self._transport.request(
                "PUT",
                f"/v2/{self.name}/manifests/{quote(identifier, safe=':')}",
                scope=self._scope("pull,push"),
                headers={"Content-Type": media_type},
                body=Body(lambda: io.BytesIO(data), len(data)),
                accept=frozenset({200, 201, 202}),
            )
        except RefusedError as error:
            if error.status < 500 or self.resolve(identifier) != descriptor:
                raise
            return descriptor
        said = response.header("docker-content-digest")
        if said and said != descriptor.digest:
            raise IntegrityError(
                f"{self} stored manifest {identifier} as {said}, not {descriptor.digest}"
            )
        return descriptor

    def delete(self, digest: str) -> None:
        """Delete a manifest by its digest.

        Raises:
            RegistryError: it is not there, or the registry does not allow deleting.
        """
        self._transport.request(
            "DELETE",
            f"/v2/{self.name}/manifests/{digest}",
            scope=self._scope("pull,delete"),
            accept=frozenset({200, 202}),
        )

    # -- lists

    def tags(self) -> list[str]:
        """All tags, page by page, in the registry's order."""
        found: list[str] = []
        for page in self._pages(f"/v2/{self.name}/tags/list?n=1000"):
            found += json.loads(page).get("tags") or []
        return found

    def referrers(self, digest: str) -> list[Descriptor]:
        """What refers to a manifest; without a referrers API, by the tag scheme of spec 1.1."""
        try:
            pages = list(self._pages(f"/v2/{self.name}/referrers/{digest}"))
        except RefusedError as error:
            if error.status not in (400, 404, 405):
                raise
            fallback = self.manifest(digest.replace(":", "-"))
            pages = [fallback[1]] if fallback and fallback[0].media_type == INDEX else []
        return [
            Descriptor.from_json(entry)
            for page in pages
            for entry in json.loads(page).get("manifests") or []
        ]

    def _pages(self, path: str) -> Iterator[bytes]:
        for _ in range(1000):
            response = self._transport.request("GET", path, scope=self._scope("pull"))
            yield response.body
            link = re.match(r'<([^>]+)>;\s*rel="?next"?', response.header("link"))
            if link is None:
                return
            path = link[1]
        raise RegistryError(f"{self} gives lists without an end")

    # -- blobs

    def has_blob(self, digest: str) -> bool:
        """Whether the repository has a blob."""
        response = self._transport.request(
            "HEAD",
            f"/v2/{self.name}/blobs/{digest}",
            scope=self._scope("pull"),
            accept=frozenset({200, 404, 307, 302}),
        )
        return response.status != 404

    def open(self, blob: Descriptor) -> BinaryIO:
        """The blob's bytes; a dropped connection is continued, the end is checked."""
        return io.BufferedReader(_BlobReader(self._transport, self._blob_path(blob), blob, self))

    def _blob_path(self, blob: Descriptor) -> str:
        return f"/v2/{self.name}/blobs/{blob.digest}"

    def pull_scope(self) -> str:
        """The token scope for reading."""
        return self._scope("pull")

    def mount(self, digest: str, source: str) -> str:
        """Ask the registry to take a blob over from repository `source`.

        Returns "" where it did, else the location of the upload that it began instead (answer 202).
        """
        scope = f"{self._scope('pull,push')} repository:{source}:pull"
        response = self._transport.request(
            "POST",
            f"/v2/{self.name}/blobs/uploads/?mount={digest}&from={quote(source, safe='')}",
            scope=scope,
            accept=frozenset({201, 202}),
        )
        return "" if response.status == 201 else response.header("location")

    def put_blob(self, layer: Layer, location: str = "") -> None:
        """Upload a blob, streamed: in one request, else in chunks of falling size.

        Args:
            layer: what to upload; opened again for every attempt.
            location: an upload that was begun already.

        Raises:
            RegistryError: refused, by a proxy even with chunks of 1 MiB.
        """
        blob = layer.descriptor
        try:
            self._upload_whole(layer, location or self._begin())
            return
        except RefusedError as error:
            if error.status != 413:
                raise
        except DroppedError:
            if blob.size <= CHUNKS[-1]:
                raise
        for size in CHUNKS:
            if size >= blob.size and size != CHUNKS[-1]:
                continue
            try:
                self._upload_chunks(layer, self._begin(), size)
                return
            except RefusedError as error:
                if error.status != 413 or size == CHUNKS[-1]:
                    raise

    def put_bytes(self, data: bytes, media_type: str) -> Descriptor:
        """Upload a small blob."""
        blob = Descriptor(media_type, sha256(data), len(data))
        self.put_blob(Layer(blob, "", _Bytes(data)))
        return blob

    def _begin(self) -> str:
        response = self._transport.request(
            "POST",
            f"/v2/{self.name}/blobs/uploads/",
            scope=self._scope("pull,push"),
            accept=frozenset({202}),
        )
        return response.header("location")

    def _upload_whole(self, layer: Layer, location: str) -> None:
        self._transport.request(
            "PUT",
            _with_digest(location, layer.descriptor.digest),
            scope=self._scope("pull,push"),
            headers={"Content-Type": "application/octet-stream"},
            body=Body(layer.open, layer.descriptor.size),
            accept=frozenset({201, 204}),
            # A body that was cut off leaves the upload in an unknown state: chunks can go on from
            # it.
            tries=2,
        )

    def _upload_chunks(self, layer: Layer, location: str, size: int) -> None:
        total, offset, failures = layer.descriptor.size, 0, 0
        while offset < total:
            length = min(size, total - offset)
            start = offset
            try:
                response = self._transport.request(
                    "PATCH",
                    location,
                    scope=self._scope("pull,push"),
                    headers={
                        "Content-Type": "application/octet-stream",
                        "Content-Range": f"{offset}-{offset + length - 1}",
                    },
                    body=Body(lambda start=start: _Slice(layer, start), length),  # type: ignore[misc]
                    accept=frozenset({202}),
                    tries=1,
                )
                location = response.header("location") or location
                offset += length
            except (DroppedError, RefusedError) as error:
                if isinstance(error, RefusedError) and error.status not in (
                    416,
                    500,
                    502,
                    503,
                    504,
                ):
                    raise
                failures += 1
                if failures > ATTEMPTS:
                    raise
                offset, location = self._progress(location)
        self._transport.request(
            "PUT",
            _with_digest(location, layer.descriptor.digest),
            scope=self._scope("pull,push"),
            accept=frozenset({201, 204}),
        )

    def _progress(self, location: str) -> tuple[int, str]:
        """How many bytes of an upload the registry has, and where it goes on."""
        response = self._transport.request(
            "GET", location, scope=self._scope("pull,push"), accept=frozenset({204})
        )
        found = _RANGE.fullmatch(response.header("range"))
        done = int(found[1]) + 1 if found and found[1] != "0" else 0
        return done, response.header("location") or location


def _with_digest(location: str, digest: str) -> str:
    return f"{location}{'&' if '?' in location else '?'}digest={digest}"


class _Bytes:
    """A blob in memory."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def open(self, blob: Descriptor) -> BinaryIO:
        return io.BytesIO(self._data)


class _Slice(io.BufferedIOBase, BinaryIO):
    """A layer's blob from an offset on; http.client stops at the Content-Length by itself."""

    def __init__(self, layer: Layer, start: int) -> None:
        self._stream = layer.open()
        self._stream.seek(start)

    def read(self, size: int | None = -1, /) -> bytes:
        return self._stream.read(-1 if size is None else size)

    def close(self) -> None:
        self._stream.close()
        super().close()


class _BlobReader(io.RawIOBase):
    """Streams a blob, goes on where a connection dropped, and checks size and digest at the end."""

    def __init__(
        self, transport: Transport, path: str, blob: Descriptor, repository: Repository
    ) -> None:
        self._transport, self._path, self._blob = transport, path, blob
        self._scope = repository.pull_scope()
        self._where = str(repository)
        self._hash = hashlib.new(blob.digest.partition(":")[0])
        self._position = 0
        self._failures = 0
        self._stream: BinaryIO | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while True:
            data = self._read_some(min(len(buffer), self._blob.size - self._position + 1))
            if data is not None:
                break
        if not data:
            if f"{self._hash.name}:{self._hash.hexdigest()}" != self._blob.digest:
                raise IntegrityError(
                    f"{self._where}: blob {self._blob.digest} came with other bytes"
                )
            return 0
        self._position += len(data)
        if self._position > self._blob.size:
            raise IntegrityError(
                f"{self._where}: blob {self._blob.digest} is longer than {self._blob.size} bytes"
            )
        self._hash.update(data)
        buffer[: len(data)] = data
        return len(data)

    def _read_some(self, size: int) -> bytes | None:
        """Bytes, b"" at the end, or None where the connection dropped and is to be opened again."""
        import http.client

        try:
            if self._stream is None:
                self._stream, _ = self._transport.stream(
                    self._path, scope=self._scope, offset=self._position
                )
            data = self._stream.read(size)
        except (OSError, http.client.HTTPException):
            data = b""
        if data or self._position == self._blob.size:
            return data
        self._failures += 1
        if self._failures > ATTEMPTS:
            raise IntegrityError(
                f"{self._where}: blob {self._blob.digest} ends after {self._position} of "
                f"{self._blob.size} bytes"
            )
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        return None

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
        super().close()
