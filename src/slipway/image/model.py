"""An image as a value: layers and a config, from which manifest and digest follow.

Functions go from image to image; where the bytes of a layer live is its `BlobSource`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, BinaryIO

from slipway.image.descriptor import CONFIG, MANIFEST, BlobSource, Descriptor, Platform
from slipway.image.reference import Reference


def canonical_json(value: Any) -> bytes:
    """JSON with sorted keys and no spare space: equal values give equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def sha256(data: bytes) -> str:
    """The digest of `data` as `sha256:<hex>`."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@dataclass(frozen=True)
class Layer:
    """One layer of an image.

    Attributes:
        descriptor: the blob as it is stored and sent (compressed).
        diff_id: digest of the uncompressed tar, as it stands in the config's rootfs.
        source: opens the blob. A layer that a registry already has need not be local.
        mount_from: a repository of the target's registry that has the blob, if one is known.
        created_by: one line for the image's history.
    """

    descriptor: Descriptor
    diff_id: str
    source: BlobSource
    mount_from: Reference | None = None
    created_by: str = ""

    def open(self) -> BinaryIO:
        """The compressed blob, from the start."""
        return self.source.open(self.descriptor)


@dataclass(frozen=True)
class Image:
    """A config and its layers.

    `config` holds no `rootfs` or `history`: those follow from `layers`.
    """

    config: Mapping[str, Any]
    layers: tuple[Layer, ...]
    annotations: Mapping[str, str] = field(default_factory=dict)
    created: str = ""

    @property
    def platform(self) -> Platform:
        """What the image runs on."""
        return Platform(
            self.config["os"], self.config["architecture"], self.config.get("variant", "")
        )

    @property
    def labels(self) -> Mapping[str, str]:
        """The config's labels."""
        labels: Mapping[str, str] = self.config.get("config", {}).get("Labels") or {}
        return labels

    @cached_property
    def config_bytes(self) -> bytes:
        """The config as it is stored (OCI image spec 1.1, config.md)."""
        history = [
            {"created_by": layer.created_by, **({"created": self.created} if self.created else {})}
            for layer in self.layers
        ]
        return canonical_json(
            {
                **self.config,
                **({"created": self.created} if self.created else {}),
                "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in self.layers]},
                "history": history,
            }
        )

    @cached_property
    def config_descriptor(self) -> Descriptor:
        """The config blob."""
        return Descriptor(CONFIG, sha256(self.config_bytes), len(self.config_bytes))

    @cached_property
    def manifest_bytes(self) -> bytes:
        """The manifest as it is stored (OCI image spec 1.1, manifest.md)."""
        return canonical_json(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": self.config_descriptor.to_json(),
                "layers": [layer.descriptor.to_json() for layer in self.layers],
                **({"annotations": dict(self.annotations)} if self.annotations else {}),
            }
        )

    @cached_property
    def descriptor(self) -> Descriptor:
        """The manifest blob; its digest is the image's digest."""
        return Descriptor(MANIFEST, sha256(self.manifest_bytes), len(self.manifest_bytes))

    @property
    def digest(self) -> str:
        """The image's digest."""
        return self.descriptor.digest

    @property
    def size(self) -> int:
        """Bytes of all blobs as they are sent: layers, config and manifest."""
        return (
            sum(layer.descriptor.size for layer in self.layers)
            + len(self.config_bytes)
            + len(self.manifest_bytes)
        )


def append(image: Image, layers: Iterable[Layer]) -> Image:
    """`image` with `layers` on top."""
    return replace(image, layers=(*image.layers, *layers))


def with_config(image: Image, **members: Any) -> Image:
    """`image` with members of its runtime config (`Entrypoint`, `Env`, `User`, …) replaced."""
    runtime = {**image.config.get("config", {}), **members}
    return replace(image, config={**image.config, "config": runtime})


def with_labels(image: Image, labels: Mapping[str, str]) -> Image:
    """`image` with `labels` added to those it has."""
    return with_config(image, Labels=dict(sorted({**image.labels, **labels}.items())))
