"""Whole images to and from a repository, in the order that never shows anything half-done."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, TypeVar

from slipway.errors import IntegrityError, RegistryError, SlipwayError, TagTakenError
from slipway.image.descriptor import INDEX_TYPES, MANIFEST, Descriptor, Platform
from slipway.image.layout import LayoutStore
from slipway.image.model import Image, Layer
from slipway.image.registry.failures import RefusedError
from slipway.image.registry.progress import Progress
from slipway.image.registry.repository import Bytes, Repository

# A config is JSON; one longer than this (bytes) is not read into memory.
_CONFIG_LIMIT = 16 << 20
# Bytes from which sending a blob costs more than asking for it (100 Mbit/s, 80 ms).
_WORTH_ASKING = 1 << 20
_BLOB_UNKNOWN = ("MANIFEST_BLOB_UNKNOWN", "BLOB_UNKNOWN", "MANIFEST_INVALID")

_Item = TypeVar("_Item")


@dataclass(frozen=True)
class PushReport:
    """What a push moved.

    Attributes:
        digest: the image's.
        bytes_uploaded: of layers and config; each blob counts once, however often it was tried.
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
    immutable: bool = True,
    known: Collection[str] = (),
    progress: Progress | None = None,
    meanwhile: Callable[[], object] | None = None,
) -> PushReport:
    """Publish an image: blobs, then the manifest under `tags[0]`, read back, then the other tags.

    Args:
        tags: the first never moves: it is refused where it names another digest. The others do.
            None at all publishes the image under its digest alone, as a part of an index.
        immutable: False to let the first move too.
        known: digests that the caller saw in a manifest of this repository; not asked for again,
            unless the registry turns out to lack one.
        progress: told how each layer gets on.
        meanwhile: called once the manifest is there and while it is read back: what the caller has
            to ask the registry before it goes on costs no time then.

    Raises:
        TagTakenError: the first tag names another image.
        RegistryError: the registry refused.
        NetworkError: the registry could not be reached, or dropped every attempt.
        IntegrityError: what is there afterwards is not this image, or a blob is damaged.
    """
    before = repository.requests
    first, *others = tags or [image.digest]
    target = repository.for_push(
        layer.mount_from.repository for layer in image.layers if layer.mount_from
    )
    push = _Push(image, target, progress)
    steps = [meanwhile] if meanwhile else []
    if not push.blobs_unless_taken(first, frozenset(known), immutable):
        _put(push, target, image, first)
        steps.append(lambda: _read_back(target, image, first))
    _each(lambda step: step(), steps, target.registry.max_connections)
    _each(
        lambda tag: target.put_manifest(image.manifest_bytes, MANIFEST, tag),
        [tag for tag in others if tag != first],
        target.registry.max_connections,
    )
    return PushReport(
        image.digest, push.uploaded, push.mounted, push.present, repository.requests - before
    )


def _read_back(repository: Repository, image: Image, tag: str) -> None:
    there = repository.manifest(tag)
    if there is None or there[1] != image.manifest_bytes:
        raise IntegrityError(
            f"{repository}:{tag} was written as {image.digest} and reads as "
            f"{there[0].digest if there else 'nothing'}",
            "another build may have written the tag in the same moment; build again",
        )


def _put(push: _Push, repository: Repository, image: Image, tag: str) -> None:
    """Write the manifest; where a blob that was taken for known is gone, ask for every one."""
    try:
        repository.put_manifest(image.manifest_bytes, MANIFEST, tag)
    except RefusedError as error:
        if error.code not in _BLOB_UNKNOWN or not push.trusted:
            raise
        push.blobs(frozenset())
        repository.put_manifest(image.manifest_bytes, MANIFEST, tag)


class _Push:
    """The blobs of one push, and the counts of what became of them."""

    def __init__(self, image: Image, repository: Repository, progress: Progress | None) -> None:
        self._image, self._repository, self._progress = image, repository, progress
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._settled: set[str] = set()
        self.trusted = False
        self.uploaded = self.mounted = self.present = 0

    def blobs_unless_taken(self, tag: str, known: frozenset[str], immutable: bool) -> bool:
        """Bring the blobs there while asking whether the tag is free; True where it is ours.

        Both at once, since a blob that nothing refers to harms nobody.

        Raises:
            TagTakenError: the tag names another digest.
        """
        ours = False

        def check() -> None:
            nonlocal ours
            taken = self._repository.resolve(tag)
            ours = taken is not None and taken.digest == self._image.digest
            if taken is not None and not ours and immutable:
                raise TagTakenError(
                    f"{self._repository}:{tag} already names {taken.digest}, not "
                    f"{self._image.digest}",
                    "a published tag never changes; build again for a new one",
                )

        self.blobs(known, check)
        return ours

    def blobs(self, known: frozenset[str], also: Callable[[], None] | None = None) -> None:
        """Bring all blobs there that are not known to be."""
        image = self._image
        config = Layer(image.config_descriptor, "", Bytes(image.config_bytes))
        wanted = {layer.descriptor.digest: layer for layer in (*image.layers, config)}
        self.trusted = bool(known & wanted.keys())
        # The largest first, so that none of them is left for the end.
        rest = sorted(
            (layer for digest, layer in wanted.items() if digest not in known),
            key=lambda layer: -layer.descriptor.size,
        )
        for digest in known & wanted.keys():
            self._settle(wanted[digest].descriptor, "present")
        tasks: list[Callable[[], None]] = [also] if also else []
        tasks += [lambda layer=layer: self._blob(layer) for layer in rest]  # type: ignore[misc]
        _each(lambda task: task(), tasks, self._repository.registry.max_connections, self._stopped)

    def _blob(self, layer: Layer) -> None:
        """Bring one blob there.

        To mount it, be it from this repository itself, says whether it is here, and begins its
        upload where it is not: one request instead of three. A registry that mounts nothing says
        that it is not here, so before much is sent it is asked once more.
        """
        blob, repository = layer.descriptor, self._repository
        source = layer.mount_from.repository if layer.mount_from else repository.name
        mounted, location = repository.mount(blob.digest, source)
        if mounted:
            self._settle(blob, "present" if source == repository.name else "mounted")
        elif blob.size >= _WORTH_ASKING and repository.has_blob(blob.digest):
            self._settle(blob, "present")
        else:
            repository.put_blob(layer, location, lambda done: self._sent(blob, done))
            self._settle(blob, "uploaded")

    def _sent(self, blob: Descriptor, done: int) -> None:
        if self._stopped.is_set():
            raise SlipwayError("given up, since another part of the push failed")
        if self._progress is not None:
            self._progress(blob, done, "")

    def _settle(self, blob: Descriptor, outcome: str) -> None:
        with self._lock:
            if blob.digest in self._settled and outcome == "present":
                return
            self._settled.add(blob.digest)
            if outcome == "uploaded":
                self.uploaded += blob.size
            elif outcome == "mounted":
                self.mounted += blob.size
            else:
                self.present += 1
        if self._progress is not None and blob != self._image.config_descriptor:
            self._progress(blob, blob.size, outcome)


def _each(
    work: Callable[[_Item], Any],
    items: Iterable[_Item],
    workers: int,
    stopped: threading.Event | None = None,
) -> None:
    """Do `work` for all items, several at once; the first failure stops the rest and is raised."""
    items = list(items)
    if len(items) < 2:
        for item in items:
            work(item)
        return
    from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

    with ThreadPoolExecutor(min(workers, len(items))) as pool:
        futures = [pool.submit(work, item) for item in items]
        try:
            for future in wait(futures, return_when=FIRST_EXCEPTION).done:
                future.result()
        except BaseException:
            if stopped is not None:
                stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def pull_image(
    repository: Repository, identifier: str, store: LayoutStore, platform: Platform
) -> Image:
    """Bring an image into `store`, of an index the one for `platform`; blobs that are here stay.

    Raises:
        RegistryError: there is no such image, or none for the platform.
        NetworkError: the registry could not be reached, or dropped every attempt.
        IntegrityError: a manifest or a blob is not what its digest says.
    """
    found = repository.manifest(identifier)
    if found is None:
        raise RegistryError(
            f"there is no {repository}:{identifier}", "see which there are: slipway image ls"
        )
    descriptor, data = found
    try:
        manifest = json.loads(data)
        if descriptor.media_type in INDEX_TYPES:
            entries = [Descriptor.from_json(entry) for entry in manifest["manifests"]]
        else:
            return _pull(repository, manifest, store)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise IntegrityError(
            f"{repository}:{identifier} is no image ({type(error).__name__}: {error})"
        ) from error
    chosen = _fitting(entries, platform)
    if chosen is None:
        raise RegistryError(
            f"{repository}:{identifier} has no image for {platform}",
            f"it has: {', '.join(str(entry.platform) for entry in entries if entry.platform)}",
        )
    if chosen.media_type in INDEX_TYPES:
        raise IntegrityError(f"{repository}:{identifier} is an index of indexes")
    return pull_image(repository, chosen.digest, store, platform)


def _fitting(entries: list[Descriptor], platform: Platform) -> Descriptor | None:
    """The entry for a platform; of several, the one whose variant is asked for, else the first."""
    fitting = [
        entry
        for entry in entries
        if entry.platform
        and (entry.platform.os, entry.platform.architecture) == (platform.os, platform.architecture)
        and (not platform.variant or entry.platform.variant in ("", platform.variant))
    ]
    exact = [entry for entry in fitting if entry.platform == platform]
    return next(iter(exact or fitting), None)


class _Stoppable:
    """A repository as a `BlobSource` whose streams end with an error once `stopped` is set."""

    def __init__(self, repository: Repository, stopped: threading.Event) -> None:
        self._repository, self._stopped = repository, stopped

    def open(self, blob: Descriptor) -> BinaryIO:
        stopped = self._stopped

        class Reader(io.BufferedReader):
            def read(self, size: int | None = -1, /) -> bytes:
                if stopped.is_set():
                    raise SlipwayError("given up, since another part of the pull failed")
                return super().read(size)

        return Reader(self._repository.open(blob), 256 << 10)  # type: ignore[arg-type]


def _pull(repository: Repository, manifest: dict[str, Any], store: LayoutStore) -> Image:
    blob = Descriptor.from_json(manifest["config"])
    if not 0 < blob.size <= _CONFIG_LIMIT:
        raise IntegrityError(f"{repository}: a config of {blob.size} bytes is none")
    with repository.open(blob) as stream:
        config = json.loads(stream.read())
    layers = [Descriptor.from_json(entry) for entry in manifest["layers"]]
    diff_ids = config["rootfs"]["diff_ids"]
    if len(diff_ids) != len(layers):
        raise IntegrityError(
            f"{repository}: the manifest has {len(layers)} layers, its config {len(diff_ids)}"
        )
    history = [entry for entry in config.get("history") or [] if not entry.get("empty_layer")]
    stopped = threading.Event()
    source = _Stoppable(repository, stopped)
    remote = [
        Layer(
            layer,
            str(diff_id),
            source,
            created_by=history[number].get("created_by", "") if number < len(history) else "",
        )
        for number, (layer, diff_id) in enumerate(zip(layers, diff_ids, strict=True))
    ]
    missing = {layer.descriptor.digest: layer for layer in remote}
    largest_first = sorted(missing.values(), key=lambda layer: -layer.descriptor.size)
    _each(store.copy, largest_first, repository.registry.max_connections, stopped)
    return Image(
        config={k: v for k, v in config.items() if k not in ("rootfs", "history", "created")},
        layers=tuple(replace(layer, source=store) for layer in remote),
        annotations=manifest.get("annotations") or {},
        created=config.get("created", ""),
    )
