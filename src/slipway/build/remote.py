"""What a repository in a registry already has of our images, read without moving a layer.

The manifests there are the build's whole cache: a runner that has never seen the project finds the
deps image by its tag and source layers by their keys.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slipway.errors import IntegrityError
from slipway.image.descriptor import INDEX_TYPES, Descriptor, Platform
from slipway.image.layer import DIFF_ID, LAYER_KEY
from slipway.image.layout import LayoutStore
from slipway.image.model import Image, Layer, sha256

if TYPE_CHECKING:
    from slipway.image.registry import Repository


# What an index is read for: the machine that asks.
HOST = Platform("linux", {"aarch64": "arm64"}.get(os.uname().machine, "amd64"))

# An annotation with the bytes of the config, which saves a request to whoever has the manifest.
CONFIG_COPY = "org.slipway.config"


@dataclass(frozen=True)
class Manifest:
    """A manifest as a registry has it; its config was not fetched."""

    descriptor: Descriptor
    config: Descriptor
    layers: tuple[Descriptor, ...]
    annotations: Mapping[str, str]


class Remote:
    """Manifests of one repository, each asked for once.

    Args:
        repository: where they are.
        store: keeps configs, which are small and named by their digest, between builds.
        publishing: whether images will be pushed there; else it is only asked for what is not here.
    """

    def __init__(
        self, repository: Repository, store: LayoutStore, *, publishing: bool = False
    ) -> None:
        self.repository = repository
        self.publishing = publishing
        self._store = store
        self._manifests: dict[str, Manifest | None] = {}

    def prefetch(self, names: Iterable[str]) -> None:
        """Ask for several manifests at once."""
        wanted = [name for name in dict.fromkeys(names) if name not in self._manifests]
        if len(wanted) < 2:
            return
        with ThreadPoolExecutor(max_workers=len(wanted)) as pool:
            self._manifests.update(zip(wanted, pool.map(self._fetch, wanted), strict=True))

    def manifest(self, name: str, *, again: bool = False) -> Manifest | None:
        """The manifest under a tag or digest, of an index the one for this machine, or None.

        Args:
            again: ask the registry even where it answered before.
        """
        if again or name not in self._manifests:
            self._manifests[name] = self._fetch(name)
        return self._manifests[name]

    def _fetch(self, name: str) -> Manifest | None:
        found = self.repository.manifest(name)
        if found is None:
            return None
        descriptor, data = found
        value = json.loads(data)
        if descriptor.media_type in INDEX_TYPES:
            digest = _listed(value, HOST)
            return self.manifest(digest) if digest and digest != name else None
        if "layers" not in value:
            return None
        return Manifest(
            descriptor,
            Descriptor.from_json(value["config"]),
            tuple(map(Descriptor.from_json, value["layers"])),
            value.get("annotations") or {},
        )

    def image(self, name: str) -> Image | None:
        """The image under a tag or digest; its layers are opened from the registry."""
        manifest = self.manifest(name)
        if manifest is None:
            return None
        return read_image(manifest, self._config(manifest), self.repository)

    def known_layers_of(self, names: Iterable[str]) -> dict[str, Layer]:
        """Layers of the first of these images that is there."""
        return next((found for name in names if (found := self.known_layers(name))), {})

    def known_layers(self, name: str) -> dict[str, Layer]:
        """Layers of an image by the keys that we gave them; the config is not needed for it."""
        manifest = self.manifest(name)
        return {
            layer.annotations[LAYER_KEY]: Layer(layer, layer.annotations[DIFF_ID], self.repository)
            for layer in (manifest.layers if manifest else ())
            if LAYER_KEY in layer.annotations and DIFF_ID in layer.annotations
        }

    def _config(self, manifest: Manifest) -> dict[str, Any]:
        config = manifest.config
        copy = manifest.annotations.get(CONFIG_COPY, "").encode()
        if sha256(copy) == config.digest:
            return dict(json.loads(copy))
        if self._store.has(config.digest):
            with self._store.open(config) as file:
                data = file.read()
            if sha256(data) == config.digest:
                return dict(json.loads(data))
        with self.repository.open(config) as file:
            data = file.read()
        if sha256(data) != config.digest:
            raise IntegrityError(
                f"config {config.digest} came from {self.repository} with other bytes"
            )
        self._store.put(data, config.media_type)
        return dict(json.loads(data))


def read_image(manifest: Manifest, config: dict[str, Any], repository: Repository) -> Image:
    """A manifest and its config as an image."""
    diff_ids = config["rootfs"]["diff_ids"]
    history = [entry for entry in config.get("history", []) if not entry.get("empty_layer")]
    layers = tuple(
        Layer(
            layer,
            diff_id,
            repository,
            created_by=history[number].get("created_by", "") if number < len(history) else "",
        )
        for number, (layer, diff_id) in enumerate(zip(manifest.layers, diff_ids, strict=True))
    )
    return Image(
        config={k: v for k, v in config.items() if k not in ("rootfs", "history", "created")},
        layers=layers,
        annotations=manifest.annotations,
        created=config.get("created", ""),
    )


def platform_digest(repository: Repository, identifier: str, platform: Platform) -> str:
    """The digest of the manifest for `platform`: of an index the one that it lists, else its own.

    Returns "" where there is no such image.
    """
    found = repository.manifest(identifier)
    if found is None:
        return ""
    descriptor, data = found
    if descriptor.media_type not in INDEX_TYPES:
        return descriptor.digest
    return _listed(json.loads(data), platform)


def _listed(index: Mapping[str, Any], platform: Platform) -> str:
    """The digest that an index lists for a platform, or ""."""
    for entry in map(Descriptor.from_json, index["manifests"]):
        there = entry.platform
        if there and (there.os, there.architecture) == (platform.os, platform.architecture):
            return entry.digest
    return ""
