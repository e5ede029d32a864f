"""Whole images to and from a repository, in the order that never shows anything half-done."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import BinaryIO

from slipway.errors import IntegrityError, RegistryError
from slipway.image.descriptor import (
    CONFIG,
    INDEX_TYPES,
    MANIFEST,
    Descriptor,
    Platform,
)
from slipway.image.layout import LayoutStore
from slipway.image.model import Image, Layer
from slipway.image.registry.repository import Repository
from slipway.image.registry.transport import RefusedError

CONNECTIONS = 4


@dataclass(frozen=True)
class PushReport:
    """What a push moved.

    Attributes:
        bytes_uploaded: of layers and config, as they were sent.
        bytes_mounted: of layers that the registry took over from another repository.
        blobs_present: blobs that were there already.
        requests: requests sent in all.
    """

    digest: str
    bytes_uploaded: int
    bytes_mounted: int
    blobs_present: int
    requests: int


def push_image(
    image: Image,
    repository: Repository,
    tags: Sequence[str],
    *,
    known: Collection[str] = (),
    progress: Callable[[Layer, str], None] | None = None,
) -> PushReport:
    """Publish an image: blobs, then the manifest under `tags[0]`, read back, then the other tags.

    Args:
        tags: the first is immutable: it is refused where it names another digest. The others move.
        known: digests that the caller saw in a manifest of this repository; not asked for again,
            unless the registry turns out to lack one.
        progress: called with each layer and `present`, `mounted` or `uploaded`.

    Raises:
        RegistryError: the first tag is taken, or the registry refused.
        IntegrityError: what is there afterwards is not this image.
    """
    before = repository.requests
    immutable, *moving = tags
    taken = repository.resolve(immutable)
    if taken is not None and taken.digest != image.digest:
        raise RegistryError(
            f"{repository}:{immutable} already names {taken.digest}, not {image.digest}",
            "a published tag never changes; build again for a new one",
        )
    tally = _Tally()
    if taken is None:
        try:
            _push_blobs(image, repository, frozenset(known), tally, progress)
            repository.put_manifest(image.manifest_bytes, MANIFEST, immutable)
        except RefusedError as error:
            if error.code not in ("MANIFEST_BLOB_UNKNOWN", "BLOB_UNKNOWN") or not known:
                raise
            # A blob of the earlier manifest is gone: ask for every one.
            _push_blobs(image, repository, frozenset(), tally, progress)
            repository.put_manifest(image.manifest_bytes, MANIFEST, immutable)
        there = repository.resolve(immutable)
        if there is None or there.digest != image.digest:
            raise IntegrityError(
                f"{repository}:{immutable} was written as {image.digest} and reads as "
                f"{there.digest if there else 'nothing'}"
            )
    for tag in moving:
        repository.put_manifest(image.manifest_bytes, MANIFEST, tag)
    return PushReport(
        image.digest,
        tally.uploaded,
        tally.mounted,
        tally.present,
        repository.requests - before,
    )


class _Tally:
    """Counts of one push, added to by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.uploaded = self.mounted = self.present = 0

    def add(self, *, uploaded: int = 0, mounted: int = 0, present: int = 0) -> None:
        with self._lock:
            self.uploaded += uploaded
            self.mounted += mounted
            self.present += present


def _push_blobs(
    image: Image,
    repository: Repository,
    known: frozenset[str],
    tally: _Tally,
    progress: Callable[[Layer, str], None] | None,
) -> None:
    config = Layer(image.config_descriptor, "", _Config(image))
    wanted = {layer.descriptor.digest: layer for layer in (*image.layers, config)}

    def push(layer: Layer) -> None:
        outcome = _push_blob(layer, repository, known, tally)
        if progress is not None and layer is not config:
            progress(layer, outcome)

    with ThreadPoolExecutor(max_workers=min(CONNECTIONS, len(wanted))) as pool:
        for _ in pool.map(push, wanted.values()):
            pass


def _push_blob(layer: Layer, repository: Repository, known: frozenset[str], tally: _Tally) -> str:
    blob = layer.descriptor
    if blob.digest in known:
        tally.add(present=1)
        return "present"
    # A config is new almost always, and small: sending it costs less than asking.
    if blob.media_type != CONFIG and repository.has_blob(blob.digest):
        tally.add(present=1)
        return "present"
    location = ""
    if layer.mount_from is not None:
        location = repository.mount(blob.digest, layer.mount_from.repository)
        if not location:
            tally.add(mounted=blob.size)
            return "mounted"
    repository.put_blob(layer, location)
    tally.add(uploaded=blob.size)
    return "uploaded"


class _Config:
    """An image's config as a blob."""

    def __init__(self, image: Image) -> None:
        self._image = image

    def open(self, blob: Descriptor) -> BinaryIO:
        return io.BytesIO(self._image.config_bytes)


def pull_image(
    repository: Repository, identifier: str, store: LayoutStore, platform: Platform
) -> Image:
    """Bring an image into `store`, of an index the one for `platform`; blobs that are here stay.

    Raises:
        RegistryError: there is no such image, or none for the platform.
        IntegrityError: a manifest or a blob is not what its digest says.
    """
    found = repository.manifest(identifier)
    if found is None:
        raise RegistryError(f"there is no {repository}:{identifier}")
    descriptor, data = found
    if descriptor.media_type in INDEX_TYPES:
        entries = [Descriptor.from_json(entry) for entry in json.loads(data)["manifests"]]
        fitting = [
            entry
            for entry in entries
            if entry.platform
            and (entry.platform.os, entry.platform.architecture)
            == (platform.os, platform.architecture)
        ]
        if not fitting:
            raise RegistryError(
                f"{repository}:{identifier} has no image for {platform}",
                f"it has: {', '.join(str(entry.platform) for entry in entries if entry.platform)}",
            )
        return pull_image(repository, fitting[0].digest, store, platform)
    manifest = json.loads(data)
    with repository.open(Descriptor.from_json(manifest["config"])) as stream:
        config = json.loads(stream.read())
    diff_ids = config["rootfs"]["diff_ids"]
    history = [entry for entry in config.get("history", []) if not entry.get("empty_layer")]
    layers = []
    for number, (entry, diff_id) in enumerate(zip(manifest["layers"], diff_ids, strict=True)):
        created_by = history[number].get("created_by", "") if number < len(history) else ""
        layer = Layer(Descriptor.from_json(entry), diff_id, repository, created_by=created_by)
        store.copy(layer)
        layers.append(Layer(layer.descriptor, diff_id, store, created_by=created_by))
    return Image(
        config={k: v for k, v in config.items() if k not in ("rootfs", "history", "created")},
        layers=tuple(layers),
        created=config.get("created", ""),
    )
