"""Names of images: `[registry/]repository[:tag][@digest]`, parsed and normalised.

Grammar: OCI distribution spec 1.1, "Pulling manifests", and Docker's reference package, of which
the short forms are kept (`debian:12` means `docker.io/library/debian:12`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from slipway.errors import UsageError

DEFAULT_REGISTRY = "docker.io"

_REPOSITORY = re.compile(
    r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*"
)
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")


@dataclass(frozen=True)
class Reference:
    """One image name. `registry` is "" for an image that only the local store knows.

    `str()` gives back a form that `parse` reads to an equal value.
    """

    repository: str
    registry: str = ""
    tag: str = ""
    digest: str = ""

    @property
    def name(self) -> str:
        """Registry and repository, without tag or digest."""
        return f"{self.registry}/{self.repository}" if self.registry else self.repository

    @property
    def identifier(self) -> str:
        """What is asked for under `/manifests/`: the digest where there is one, else the tag."""
        return self.digest or self.tag or "latest"

    def __str__(self) -> str:
        return (
            self.name
            + (f":{self.tag}" if self.tag else "")
            + (f"@{self.digest}" if self.digest else "")
        )


def parse(text: str, *, default_registry: str = DEFAULT_REGISTRY) -> Reference:
    """Read an image name.

    Args:
        text: for example `127.0.0.1:5000/team/keel:main-latest@sha256:…` or `debian:12`.
        default_registry: used where the name has no registry part; "" keeps such a name local.

    Raises:
        UsageError: the text is no image name; the message says which part is wrong.
    """

    def refuse(part: str, value: str) -> UsageError:
        return UsageError(
            f"{text!r} is not an image name: {part} {value!r} is not allowed",
            "write [registry/]repository[:tag][@sha256:…], repository in lower case",
        )

    rest, _, digest = text.partition("@")
    if digest and not _DIGEST.fullmatch(digest):
        raise refuse("digest", digest)
    head, slash, tail = rest.partition("/")
    registry = ""
    if slash and ("." in head or ":" in head or head == "localhost"):
        registry, rest = head, tail
    repository, colon, tag = rest.partition(":")
    if colon and not _TAG.fullmatch(tag):
        raise refuse("tag", tag)
    if not _REPOSITORY.fullmatch(repository):
        raise refuse("repository", repository)
    if not registry:
        registry = default_registry
        if registry == DEFAULT_REGISTRY and "/" not in repository:
            repository = f"library/{repository}"
    return Reference(repository=repository, registry=registry, tag=tag, digest=digest)
