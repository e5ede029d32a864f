"""Content descriptors and the blobs they name (OCI image spec 1.1, descriptor.md)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Protocol

from slipway.errors import IntegrityError

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER_TAR = "application/vnd.oci.image.layer.v1.tar"
LAYER_GZIP = "application/vnd.oci.image.layer.v1.tar+gzip"
LAYER_ZSTD = "application/vnd.oci.image.layer.v1.tar+zstd"
EMPTY = "application/vnd.oci.empty.v1+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_CONFIG = "application/vnd.docker.container.image.v1+json"
DOCKER_LAYER_GZIP = "application/vnd.docker.image.rootfs.diff.tar.gzip"

MANIFEST_TYPES = (MANIFEST, INDEX, DOCKER_MANIFEST, DOCKER_INDEX)
INDEX_TYPES = (INDEX, DOCKER_INDEX)

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")


@dataclass(frozen=True)
class Platform:
    """Operating system and architecture in Go's names, e.g. `linux/amd64`."""

    os: str
    architecture: str
    variant: str = ""

    @classmethod
    def parse(cls, text: str) -> Platform:
        """Read `os/architecture[/variant]`."""
        system, _, rest = text.partition("/")
        architecture, _, variant = rest.partition("/")
        return cls(system, architecture, variant)

    def __str__(self) -> str:
        return "/".join(part for part in (self.os, self.architecture, self.variant) if part)


@dataclass(frozen=True)
class Descriptor:
    """What one blob is: media type, digest and size in bytes, and what is noted about it."""

    media_type: str
    digest: str
    size: int
    annotations: Mapping[str, str] = field(default_factory=dict)
    platform: Platform | None = None
    artifact_type: str = ""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Descriptor:
        """Read the JSON form.

        Raises:
            IntegrityError: a required member is missing or has the wrong type, the size is
                negative, or the digest is none: stores make file names of it.
        """
        try:
            platform = data.get("platform")
            if not _DIGEST.fullmatch(data["digest"]) or int(data["size"]) < 0:
                raise ValueError("no digest, or no size")
            return cls(
                media_type=str(data["mediaType"]),
                digest=str(data["digest"]),
                size=int(data["size"]),
                annotations={str(k): str(v) for k, v in (data.get("annotations") or {}).items()},
                platform=Platform(
                    str(platform["os"]),
                    str(platform["architecture"]),
                    str(platform.get("variant", "")),
                )
                if platform
                else None,
                artifact_type=str(data.get("artifactType", "")),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise IntegrityError(f"not a content descriptor: {data!r} ({error!r})") from error

    def to_json(self) -> dict[str, Any]:
        """The JSON form; members that are empty are left out."""
        data: dict[str, Any] = {
            "mediaType": self.media_type,
            "digest": self.digest,
            "size": self.size,
        }
        if self.artifact_type:
            data["artifactType"] = self.artifact_type
        if self.annotations:
            data["annotations"] = dict(sorted(self.annotations.items()))
        if self.platform:
            data["platform"] = {
                "architecture": self.platform.architecture,
                "os": self.platform.os,
                **({"variant": self.platform.variant} if self.platform.variant else {}),
            }
        return data


class BlobSource(Protocol):
    """Where the bytes of blobs live: a layout on disk, a registry's repository, memory."""

    def open(self, blob: Descriptor) -> BinaryIO:
        """A stream of the blob's bytes, from the start.

        The reader verifies digest and size; a source need not.

        Raises:
            SlipwayError: the blob is not here.
        """
        ...
