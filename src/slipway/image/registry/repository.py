"""One repository of a registry: its manifests, tags, referrers and blobs."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

from slipway.errors import IntegrityError, NetworkError, RegistryError, UsageError
from slipway.image.descriptor import MANIFEST, MANIFEST_TYPES, Descriptor
from slipway.image.model import Layer, sha256
from slipway.image.registry import referrers
from slipway.image.registry.auth import Credentials
from slipway.image.registry.download import open_blob
from slipway.image.registry.failures import RefusedError
from slipway.image.registry.retry import Retries
from slipway.image.registry.transport import Body, Response, Transport
from slipway.image.registry.upload import Upload

CONNECTIONS = 4
DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_NAME = re.compile(rf"{_PART}(?:/{_PART})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_NEXT = re.compile(r'<([^>]+)>\s*;\s*rel="?next"?')
_ACCEPT = ", ".join(MANIFEST_TYPES)
_MOST_PAGES = 10_000


class Registry:
    """A registry by its host, e.g. `127.0.0.1:5000` or `docker.io`.

    Args:
        host: `host[:port]` as it stands in image names.
        insecure: speak plain HTTP; None for loopback hosts and those in
            `SLIPWAY_INSECURE_REGISTRIES` (comma separated).
        credentials: None to look where Docker keeps them.
        max_connections: how many blobs of one image move at once.
        attempts: how often a request is tried in all.
        retries: all bounds of trying again, instead of `attempts`.
    """

    def __init__(
        self,
        host: str,
        *,
        insecure: bool | None = None,
        credentials: Credentials | None = None,
        max_connections: int = CONNECTIONS,
        attempts: int = Retries.attempts,
        retries: Retries | None = None,
    ) -> None:
        self.host = host
        self.max_connections = max_connections
        self.transport = Transport(
            host,
            insecure=insecure,
            credentials=credentials,
            retries=retries or Retries(attempts=attempts),
        )

    def repository(self, name: str) -> Repository:
        """A repository by its name, e.g. `team/keel`.

        Raises:
            UsageError: that is no name of a repository.
        """
        if not _NAME.fullmatch(name) or len(name) > 255:
            raise UsageError(f"{name!r} is no name of a repository", "write it like team/keel")
        return Repository(self, name)

    def close(self) -> None:
        """Close the kept connections."""
        self.transport.close()


class Repository:
    """One repository. It is a `BlobSource`: `open` streams a blob and checks it.

    Args:
        access: scopes that every request asks a token for; "" for what each one needs.
    """

    def __init__(self, registry: Registry, name: str, access: str = "") -> None:
        self.registry = registry
        self.name = name
        self._transport = registry.transport
        self._access = access

    def __str__(self) -> str:
        return f"{self._transport.host}/{self.name}"

    @property
    def requests(self) -> int:
        """How many requests the registry was sent so far."""
        return self._transport.requests

    def for_push(self, sources: Iterable[str] = ()) -> Repository:
        """This repository, with one token for all of a push: reading `sources` and writing here."""
        names = sorted({*sources} - {self.name})
        scopes = [f"repository:{self.name}:pull,push"]
        return Repository(
            self.registry,
            self.name,
            " ".join(scopes + [f"repository:{name}:pull" for name in names]),
        )

    def warm(self, count: int = CONNECTIONS) -> None:
        """Connect and log in ahead of a push, e.g. in a thread while the image is built.

        Raises:
            NetworkError: the registry cannot be reached.
            RegistryError: it refuses our credentials.
        """
        self._transport.warm(count)
        repository = self.for_push()
        repository._request("HEAD", "/tags/list", accept=(200, 404, 405))

    # -- manifests

    def resolve(self, identifier: str) -> Descriptor | None:
        """What a tag or digest names, or None.

        Raises:
            IntegrityError: the registry answers a digest with another.
        """
        response = self._manifest_request("HEAD", identifier, (200, 404, 405))
        if response.status == 404:
            return None
        digest, size = response.header("docker-content-digest"), response.header("content-length")
        if response.status == 405 or not DIGEST.fullmatch(digest) or not size.isdecimal():
            found = self.manifest(identifier)
            return found[0] if found else None
        if ":" in identifier and identifier != digest:
            raise IntegrityError(f"{self}: {identifier} was answered with {digest}")
        return Descriptor(_media_type(response), digest, int(size))

    def manifest(self, identifier: str) -> tuple[Descriptor, bytes] | None:
        """A manifest and its bytes, checked, or None where there is none.

        Raises:
            IntegrityError: the bytes are not what their digest says.
            RegistryError: it is longer than 4 MiB.
        """
        response = self._manifest_request("GET", identifier, (200, 404))
        if response.status == 404:
            return None
        said = response.header("docker-content-digest")
        wanted = identifier if ":" in identifier else said
        digest = sha256(response.body)
        if DIGEST.fullmatch(wanted) and wanted.startswith("sha512:"):
            import hashlib

            digest = f"sha512:{hashlib.sha512(response.body).hexdigest()}"
        if wanted and wanted != digest:
            raise IntegrityError(
                f"{self}: manifest {identifier} came with the bytes of {digest}, not {wanted[:80]}"
            )
        return Descriptor(_media_type(response), digest, len(response.body)), response.body

    def put_manifest(self, data: bytes, media_type: str, identifier: str = "") -> Descriptor:
        """Store a manifest under a tag, or its own digest where none is given.

        An answer of 5xx is tried again after a look at what is there: some registries answer so to
        a write that did take place (Gitea, when a tag moves or two writes meet). So is a refused
        digest: docker-registry says that to one of two writers of the same bytes.

        Raises:
            RegistryError: it is not there afterwards.
        """
        return self._put_manifest(data, media_type, identifier)[0]

    def attach(self, data: bytes, media_type: str = MANIFEST) -> Descriptor:
        """Store a manifest that has a `subject`, so that `referrers` of the subject lists it."""
        descriptor, response = self._put_manifest(data, media_type, "")
        if response is None or not response.header("oci-subject"):
            referrers.note(self, descriptor, data)
        return descriptor

    def _put_manifest(
        self, data: bytes, media_type: str, identifier: str
    ) -> tuple[Descriptor, Response | None]:
        descriptor = Descriptor(media_type, sha256(data), len(data))
        identifier = identifier or descriptor.digest
        backoff = self._transport.backoff()
        while True:
            try:
                response = self._request(
                    "PUT",
                    f"/manifests/{_identifier(identifier)}",
                    access="pull,push",
                    headers={"Content-Type": media_type},
                    body=Body(lambda: io.BytesIO(data), len(data)),
                    accept=(200, 201, 202),
                    tries=1,
                )
                break
            except (RefusedError, NetworkError) as error:
                doubtful, after = False, ""
                if isinstance(error, RefusedError):
                    after = error.retry_after
                    doubtful = error.status >= 500 or error.code == "DIGEST_INVALID"
                    if not doubtful and error.status not in (408, 429):
                        raise
                if doubtful:
                    there = self.resolve(identifier)
                    if there is not None and there.digest == descriptor.digest:
                        return descriptor, None
                if not backoff.wait(after):
                    raise
        said = response.header("docker-content-digest")
        if said and said != descriptor.digest:
            raise IntegrityError(
                f"{self} stored manifest {identifier} as {said[:80]}, not {descriptor.digest}"
            )
        return descriptor, response

    def delete(self, identifier: str) -> None:
        """Delete a manifest by its digest, or, where the registry allows that, a tag alone.

        Raises:
            RegistryError: it is not there, or the registry does not allow deleting.
        """
        self._request(
            "DELETE",
            f"/manifests/{_identifier(identifier)}",
            access="pull,delete",
            accept=(200, 202, 204),
        )

    def _manifest_request(self, method: str, identifier: str, accept: tuple[int, ...]) -> Response:
        return self._request(
            method,
            f"/manifests/{_identifier(identifier)}",
            headers={"Accept": _ACCEPT},
            accept=accept,
        )

    # -- lists

    def tags(self) -> list[str]:
        """All tags, in the registry's order; none where it does not know the repository."""
        try:
            return [str(tag) for page in self._pages("/tags/list?n=1000", "tags") for tag in page]
        except RefusedError as error:
            if error.status != 404:
                raise
            return []

    def referrers(self, digest: str, artifact_type: str = "") -> list[Descriptor]:
        """What refers to a manifest, of one artifact type or of all.

        A registry without the API keeps them under a tag (spec 1.1, "Referrers tag schema").
        """
        return referrers.find(self, _digest(digest), artifact_type)

    def _pages(self, path: str, member: str) -> Iterator[list[Any]]:
        """The list `member` of each page.

        Raises:
            RegistryError: a page is not what it should be, or they have no end.
        """
        seen: set[str] = set()
        url = f"/v2/{self.name}{path}"
        while url not in seen and len(seen) < _MOST_PAGES:
            seen.add(url)
            response = self._transport.request("GET", url, scope=self._scope("pull"))
            try:
                page = json.loads(response.body)[member] or []
            except (ValueError, TypeError, KeyError) as error:
                raise RegistryError(f"{self} answers {url} with what is no list") from error
            if not isinstance(page, list):
                raise RegistryError(f"{self} answers {url} with what is no list")
            yield page
            following = _NEXT.search(response.header("link"))
            if following is None:
                return
            url = self._transport.locate(following[1], self._transport.locate(url))
        raise RegistryError(f"{self} gives a list without an end")

    # -- blobs

    def has_blob(self, digest: str) -> bool:
        """Whether the repository has a blob."""
        # A redirect says that it is there; where it leads often answers GET alone.
        accept = (200, 302, 303, 307, 308, 404)
        return self._request("HEAD", f"/blobs/{_digest(digest)}", accept=accept).status != 404

    def open(self, blob: Descriptor) -> BinaryIO:
        """The blob's bytes; a dropped connection is continued, the end is checked.

        Raises, here or while it is read: NetworkError, RegistryError, IntegrityError.
        """
        path = f"/v2/{self.name}/blobs/{_digest(blob.digest)}"
        return open_blob(self._transport, str(self), path, self._scope("pull"), blob)

    def mount(self, digest: str, source: str) -> tuple[bool, str]:
        """Ask the registry to take a blob over from repository `source` (or have it, from itself).

        Returns:
            Whether it did; and, where not, the upload that it began instead, if any.
        """
        path = f"/blobs/uploads/?mount={_digest(digest)}&from={source.replace('/', '%2F')}"
        try:
            response = self._request("POST", path, access="pull,push", accept=(201, 202))
        except RefusedError as error:
            # Some refuse what they should decline with 202, and what their token does not cover.
            if error.status in (400, 401, 403, 404, 405):
                return False, ""
            raise
        return response.status == 201, response.header("location")

    def put_blob(
        self, layer: Layer, location: str = "", sent: Callable[[int], None] | None = None
    ) -> None:
        """Upload a blob, streamed: in one request, else in chunks of falling size.

        Args:
            layer: what to upload; opened again for every attempt.
            location: an upload that was begun already.
            sent: called with the bytes sent so far; may raise to give up.

        Raises:
            NetworkError, RegistryError: see `Upload.run`.
            IntegrityError: the blob is damaged.
        """
        uploads = f"/v2/{self.name}/blobs/uploads/"
        Upload(self._transport, uploads, self._scope("pull,push"), layer, location, sent).run()

    def put_bytes(self, data: bytes, media_type: str) -> Descriptor:
        """Upload a small blob."""
        blob = Descriptor(media_type, sha256(data), len(data))
        self.put_blob(Layer(blob, "", Bytes(data)))
        return blob

    # -- requests

    def _scope(self, actions: str) -> str:
        return self._access or f"repository:{self.name}:{actions}"

    def _request(
        self,
        method: str,
        path: str,
        *,
        access: str = "pull",
        headers: dict[str, str] | None = None,
        body: Body | None = None,
        accept: tuple[int, ...] = (200,),
        tries: int = 0,
    ) -> Response:
        return self._transport.request(
            method,
            f"/v2/{self.name}{path}",
            scope=self._scope(access),
            headers=headers,
            body=body,
            accept=accept,
            tries=tries,
        )


class Bytes:
    """A blob in memory, as a `BlobSource`."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def open(self, blob: Descriptor) -> BinaryIO:
        """The bytes, whatever descriptor is asked for."""
        return io.BytesIO(self._data)


def _media_type(response: Response) -> str:
    """What a manifest is: by its header, else by what it says itself."""
    said = response.header("content-type").partition(";")[0].strip()
    if said in MANIFEST_TYPES or not response.body:
        return said or MANIFEST
    try:
        return str(json.loads(response.body).get("mediaType") or MANIFEST)
    except (ValueError, AttributeError):
        return said or MANIFEST


def _digest(text: str) -> str:
    if not DIGEST.fullmatch(text):
        raise UsageError(f"{text[:100]!r} is no digest", "a digest is sha256:<64 hex digits>")
    return text


def _identifier(text: str) -> str:
    if not _TAG.fullmatch(text) and not DIGEST.fullmatch(text):
        raise UsageError(f"{text[:150]!r} is neither a tag nor a digest")
    return text
