"""An OCI image layout on disk: blobs by digest, names in `index.json` (image-layout.md, 1.1).

Writers work under a temporary name and rename, names change under a lock, so a reader never sees
half a blob and a build killed at any point leaves a usable store.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from slipway.errors import IntegrityError, StorageError, TagTakenError
from slipway.image.descriptor import MANIFEST, MANIFEST_TYPES, Descriptor
from slipway.image.model import Image, Layer, canonical_json, sha256

REF_NAME = "org.opencontainers.image.ref.name"
_CHUNK = 1 << 20
_PART = ".part-"
# Seconds after which a part that no writer holds was left by a build that was killed.
_ABANDONED = 60


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn a refusing disk into a `StorageError` that names the place and what helps."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageError(
                f"the disk under {path} is full",
                "free some space (`df -h` shows where), or put the store elsewhere with --store",
            ) from error
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise StorageError(
                f"{path} cannot be written: {error.strerror}",
                "make it writable, or put the store elsewhere with --store",
            ) from error
        raise


class BlobWriter:
    """A blob that is being written: hashed on the way, visible only once committed."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> int:
        """Append bytes."""
        self._file.write(data)
        self._hash.update(data)
        self.size += len(data)
        return len(data)

    @property
    def digest(self) -> str:
        """Digest of what was written so far."""
        return f"sha256:{self._hash.hexdigest()}"


class LayoutStore:
    """The layout at `root`, made when first written to."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._swept = False

    # -- blobs

    def blob_path(self, digest: str) -> Path:
        """Where a blob lies or would lie."""
        algorithm, _, value = digest.partition(":")
        return self.root / "blobs" / algorithm / value

    def has(self, digest: str) -> bool:
        """Whether the blob is here."""
        return self.blob_path(digest).exists()

    def open(self, blob: Descriptor) -> BinaryIO:
        """The blob's bytes, from the start.

        Raises:
            IntegrityError: it is not here, or has another size than its descriptor says.
        """
        path = self.blob_path(blob.digest)
        try:
            file = path.open("rb")
        except FileNotFoundError as error:
            raise IntegrityError(
                f"blob {blob.digest} is missing from {self.root}",
                f"remove {self.root} and build again",
            ) from error
        if os.fstat(file.fileno()).st_size != blob.size:
            file.close()
            raise IntegrityError(
                f"blob {blob.digest} in {self.root} is not {blob.size} bytes long",
                f"remove {path} and build again",
            )
        return file

    @contextmanager
    def writer(self) -> Iterator[BlobWriter]:
        """A new blob, kept under its digest when the block ends without an exception.

        Raises:
            StorageError: the disk is full or may not be written; nothing is left behind.
        """
        with storage_errors(self.root):
            folder = self.root / "blobs" / "sha256"
            folder.mkdir(parents=True, exist_ok=True)
            self._sweep(folder)
            descriptor, name = tempfile.mkstemp(prefix=_PART, dir=folder)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    # Held as long as the part is written: what nobody holds is abandoned.
                    fcntl.flock(file, fcntl.LOCK_EX)
                    blob = BlobWriter(file)
                    yield blob
                    os.fchmod(file.fileno(), 0o644)
                    file.flush()
                    os.fsync(file.fileno())
                    os.replace(name, self.blob_path(blob.digest))
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise

    def _sweep(self, folder: Path) -> None:
        """Remove the parts of builds that were killed."""
        if self._swept:
            return
        self._swept = True
        for part in folder.glob(f"{_PART}*"):
            with suppress(FileNotFoundError, BlockingIOError), part.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if time.time() - os.fstat(file.fileno()).st_mtime > _ABANDONED:
                    part.unlink()

    def put(self, data: bytes, media_type: str) -> Descriptor:
        """Store a small blob."""
        blob = Descriptor(media_type, sha256(data), len(data))
        if not self.has(blob.digest):
            with self.writer() as writer:
                writer.write(data)
        return blob

    def copy(self, layer: Layer) -> None:
        """Bring a layer's blob here, checked against its descriptor.

        Raises:
            IntegrityError: the source gave other bytes.
        """
        blob = layer.descriptor
        if self.has(blob.digest):
            return
        with layer.open() as source, self.writer() as writer:
            while chunk := source.read(_CHUNK):
                writer.write(chunk)
            if writer.digest != blob.digest or writer.size != blob.size:
                raise IntegrityError(
                    f"blob {blob.digest} came as {writer.digest} with {writer.size} bytes"
                )

    # -- images

    def write_image(
        self,
        image: Image,
        tags: Iterable[str] = (),
        *,
        move: bool = False,
        sparse: bool = False,
    ) -> None:
        """Store an image, blobs first, then its names.

        Args:
            image: what to store; layers that are not here are copied from their source.
            tags: names to give it.
            move: allow a name that names another digest to move.
            sparse: copy no layers: the image is known here, and all of it lies elsewhere.

        Raises:
            TagTakenError: a tag names another digest and may not move.
        """
        for layer in () if sparse else image.layers:
            self.copy(layer)
        self.put(image.config_bytes, image.config_descriptor.media_type)
        self.put(image.manifest_bytes, MANIFEST)
        for tag in tags:
            self.tag(tag, image.descriptor, move=move)

    def read_image(self, name: str) -> Image | None:
        """The image under a tag or digest, or None where it is not here.

        Raises:
            IntegrityError: it is here and damaged.
        """
        descriptor = self.tags().get(name)
        if descriptor is None:
            if not name.startswith("sha256:") or not self.has(name):
                return None
            descriptor = Descriptor(MANIFEST, name, self.blob_path(name).stat().st_size)
        manifest = self._read_json(descriptor)
        if manifest.get("mediaType", MANIFEST) not in MANIFEST_TYPES or "layers" not in manifest:
            raise IntegrityError(f"{name} in {self.root} is not an image manifest")
        config = self._read_json(Descriptor.from_json(manifest["config"]))
        diff_ids = config["rootfs"]["diff_ids"]
        history = [entry for entry in config.get("history", []) if not entry.get("empty_layer")]
        layers = tuple(
            Layer(
                descriptor=Descriptor.from_json(layer),
                diff_id=diff_id,
                source=self,
                created_by=history[number].get("created_by", "") if number < len(history) else "",
            )
            for number, (layer, diff_id) in enumerate(
                zip(manifest["layers"], diff_ids, strict=True)
            )
        )
        return Image(
            config={k: v for k, v in config.items() if k not in ("rootfs", "history", "created")},
            layers=layers,
            annotations=manifest.get("annotations") or {},
            created=config.get("created", ""),
        )

    def _read_json(self, descriptor: Descriptor) -> dict[str, Any]:
        with self.open(descriptor) as file:
            data = file.read()
        if sha256(data) != descriptor.digest:
            raise IntegrityError(
                f"blob {descriptor.digest} in {self.root} is damaged",
                f"remove {self.blob_path(descriptor.digest)} and build again",
            )
        value: dict[str, Any] = json.loads(data)
        return value

    # -- names

    def tags(self) -> Mapping[str, Descriptor]:
        """All names, in the order they were given."""
        try:
            index = json.loads((self.root / "index.json").read_bytes())
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise IntegrityError(
                f"{self.root / 'index.json'} is damaged: {error}", f"remove {self.root}"
            ) from error
        found = {}
        for entry in index.get("manifests", []):
            descriptor = Descriptor.from_json(entry)
            if name := descriptor.annotations.get(REF_NAME):
                found[name] = replace(descriptor, annotations={})
        return found

    def tag(self, name: str, image: Descriptor, *, move: bool = False) -> None:
        """Let `name` name `image`, whose manifest is already here.

        Raises:
            TagTakenError: `name` names another digest and `move` is not set.
        """
        if not self.advance(name, image, lambda _taken: move):
            taken = self.tags()[name]
            raise TagTakenError(
                f"tag {name} already names {taken.digest}, not {image.digest}",
                "tags are immutable; choose another with --tag",
            )

    def advance(self, name: str, image: Descriptor, may: Callable[[Descriptor], bool]) -> bool:
        """Let `name` name `image` unless it names another image and `may` refuses to leave that.

        Asking and moving are one step: no other writer comes between.
        """
        with self._locked():
            tags = dict(self.tags())
            taken = tags.pop(name, None)
            if taken == image:
                return True
            if taken is not None and not may(taken):
                return False
            self._write_index({**tags, name: image})
            return True

    def untag(self, name: str) -> None:
        """Forget a name; blobs stay until `collect`."""
        with self._locked():
            tags = dict(self.tags())
            if tags.pop(name, None) is not None:
                self._write_index(tags)

    def collect(self) -> int:
        """Remove blobs that no named image refers to; gives the bytes that this freed.

        Raises:
            StorageError: a build writes into the store: its blobs get their name last.
        """
        freed = 0
        with self._at_work(fcntl.LOCK_EX | fcntl.LOCK_NB), self._locked():
            live = set()
            for descriptor in self.tags().values():
                live.add(descriptor.digest)
                image = self.read_image(descriptor.digest)
                if image is not None:
                    manifest = self._read_json(descriptor)
                    live |= {str(manifest["config"]["digest"])}
                    live |= {layer.descriptor.digest for layer in image.layers}
            for path in (self.root / "blobs" / "sha256").glob("[0-9a-f]*"):
                if f"sha256:{path.name}" not in live:
                    freed += path.stat().st_size
                    path.unlink()
        return freed

    @contextmanager
    def building(self) -> Iterator[None]:
        """Keep `collect` away while blobs are written that nothing names yet."""
        with self._at_work(fcntl.LOCK_SH):
            yield

    @contextmanager
    def _at_work(self, mode: int) -> Iterator[None]:
        with storage_errors(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
            with (self.root / ".building").open("w") as file:
                try:
                    fcntl.flock(file, mode)
                except BlockingIOError as error:
                    raise StorageError(
                        f"a build is writing into {self.root}", "try again when it is done"
                    ) from error
                yield

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with storage_errors(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
            with (self.root / ".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield

    def _write_index(self, tags: Mapping[str, Descriptor]) -> None:
        marker = self.root / "oci-layout"
        if not marker.exists():
            _replace(marker, b'{"imageLayoutVersion":"1.0.0"}')
        manifests = [
            replace(descriptor, annotations={REF_NAME: name}).to_json()
            for name, descriptor in tags.items()
        ]
        index = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": manifests,
        }
        _replace(self.root / "index.json", canonical_json(index))


def _replace(path: Path, data: bytes) -> None:
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            os.fchmod(file.fileno(), 0o644)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
