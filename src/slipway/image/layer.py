"""Layers that are the same bytes on every machine: a sorted tar through a pinned compressor.

Owners are 0:0, times are one constant (a commit's time would give every layer of every commit other
bytes), only directories below the roots that we own are declared, so that the base's own modes
stay.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import BinaryIO, Protocol

from slipway.errors import IntegrityError
from slipway.image.descriptor import LAYER_GZIP, LAYER_ZSTD, Descriptor
from slipway.image.layout import BlobWriter, LayoutStore
from slipway.image.model import Layer, canonical_json, sha256

LAYER_KEY = "org.slipway.layer-key"
DIFF_ID = "org.slipway.diff-id"
OPAQUE = ".wh..wh..opq"

# Seconds since 1970 of every entry: 1980-01-01, the oldest time that a zip can hold.
MTIME = 315532800

# Compressor, level and version of the tar, by the compression's name. Part of every layer key:
# change it when equal content gives other bytes. Docker before 23 cannot read zstd.
FORMATS = {"gzip": "tar+isal1/1", "zstd": "tar+zstd3/1"}
DEFAULT_COMPRESSION = "gzip"

_MEDIA_TYPES = {"gzip": LAYER_GZIP, "zstd": LAYER_ZSTD}

_CHUNK = 1 << 20


class Sink(Protocol):
    """Where bytes go."""

    def write(self, data: bytes) -> int: ...


def layer_key(kind: str, content: object, compression: str = DEFAULT_COMPRESSION) -> str:
    """The content key of a layer: its kind, the format version, and what decides its bytes."""
    described = canonical_json([kind, FORMATS[compression], content])
    return sha256(described).removeprefix("sha256:")


def safe_path(name: str, offender: str) -> str:
    """`name` as a relative path that stays inside the layer.

    Raises:
        IntegrityError: it is absolute, empty, or climbs out; the message names the offender.
    """
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or "\0" in name or "\\" in name:
        raise IntegrityError(f"{offender} has an entry that leaves its folder: {name!r}")
    return str(path)


@dataclass(frozen=True)
class File:
    """A small file to be, held in memory."""

    path: str
    data: bytes
    executable: bool = False


@dataclass(frozen=True)
class Symlink:
    """A symbolic link to be."""

    path: str
    target: str


class LayerWriter:
    """Writes one layer's entries in the order given, parents first.

    Args:
        sink: receives the uncompressed tar.
        roots: directories that this layer may declare, with all that is below them; those above,
            `opt` for example, belong to the base.
    """

    def __init__(self, sink: Sink, roots: Iterable[str]) -> None:
        self._sink = sink
        self._roots = tuple(PurePosixPath(root) for root in roots)
        self._seen: set[str] = set()
        self._folders: set[str] = set()

    def directory(self, path: str) -> None:
        """Declare a directory and those above it that are ours."""
        if path in self._folders:  # most entries of a wheel share a folder
            return
        self._folders.add(path)
        parts = PurePosixPath(path)
        for parent in (*reversed(parts.parents), parts):
            name = str(parent)
            if name in self._seen or not any(parent.is_relative_to(root) for root in self._roots):
                continue
            self._seen.add(name)
            self._header(name, tarfile.DIRTYPE, 0o755)

    def file(self, path: str, stream: BinaryIO, size: int, *, executable: bool = False) -> str:
        """Add a file of `size` bytes from `stream`; gives its sha256 in hex.

        Raises:
            IntegrityError: the stream is shorter or longer than `size`, or the path is taken.
        """
        self._claim(path)
        self._header(path, tarfile.REGTYPE, 0o755 if executable else 0o644, size=size)
        digest = hashlib.sha256()
        left = size
        while chunk := stream.read(min(_CHUNK, left + 1)):
            left -= len(chunk)
            if left < 0:
                break
            digest.update(chunk)
            self._sink.write(chunk)
        if left:
            raise IntegrityError(f"{path} is not {size} bytes long")
        if pad := -size % tarfile.BLOCKSIZE:
            self._sink.write(b"\0" * pad)
        return digest.hexdigest()

    def add(self, entry: File | Symlink) -> None:
        """Add a small file or a link."""
        if isinstance(entry, Symlink):
            self._claim(entry.path)
            self._header(entry.path, tarfile.SYMTYPE, 0o777, target=entry.target)
        else:
            stream = io.BytesIO(entry.data)
            self.file(entry.path, stream, len(entry.data), executable=entry.executable)

    def opaque(self, directory: str) -> None:
        """Hide what lower layers have in `directory` (image-spec, layer.md: opaque whiteout)."""
        self.directory(directory)
        self._header(f"{directory}/{OPAQUE}", tarfile.REGTYPE, 0o644)

    def finish(self) -> None:
        """End the tar."""
        self._sink.write(b"\0" * (2 * tarfile.BLOCKSIZE))

    def _claim(self, path: str) -> None:
        if path in self._seen:
            raise IntegrityError(f"two entries of one layer are called {path}")
        self.directory(path.rpartition("/")[0] or ".")
        self._seen.add(path)

    def _header(
        self, path: str, kind: bytes, mode: int, *, size: int = 0, target: str = ""
    ) -> None:
        info = tarfile.TarInfo(path)
        info.type, info.mode, info.size, info.linkname, info.mtime = kind, mode, size, target, MTIME
        self._sink.write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict"))


class Packer:
    """Compresses into a blob, taking the digest of the uncompressed side on the way.

    The compressor is fed pieces of one size, so that its output depends on the bytes alone and not
    on how they were written.
    """

    def __init__(self, blob: BlobWriter, compression: str = DEFAULT_COMPRESSION) -> None:
        self._blob = blob
        self._hash = hashlib.sha256()
        self._compressor = _compressor(compression)
        self._pending = bytearray()

    def write(self, data: bytes) -> int:
        """Append uncompressed bytes."""
        self._pending += data
        while len(self._pending) >= _CHUNK:
            self._compress(bytes(self._pending[:_CHUNK]))
            del self._pending[:_CHUNK]
        return len(data)

    def close(self) -> str:
        """End the stream; gives the diff id."""
        self._compress(bytes(self._pending))
        self._pending.clear()
        self._blob.write(self._compressor.flush())
        return f"sha256:{self._hash.hexdigest()}"

    def _compress(self, data: bytes) -> None:
        self._hash.update(data)
        self._blob.write(self._compressor.compress(data))


class _Compressor(Protocol):
    def compress(self, data: bytes, /) -> bytes: ...

    def flush(self) -> bytes: ...


def _compressor(compression: str) -> _Compressor:
    if compression == "zstd":
        import zstandard

        # One thread, and no checksum of its own: the blob has a digest.
        return zstandard.ZstdCompressor(level=3, write_checksum=False).compressobj()
    from isal import isal_zlib

    return isal_zlib.compressobj(level=1, wbits=31)


class Fill(Protocol):
    """Writes a layer's entries."""

    def __call__(self, writer: LayerWriter) -> None: ...


def write_layer(
    store: LayoutStore,
    fill: Fill,
    *,
    roots: Iterable[str],
    key: str,
    created_by: str,
    compression: str = DEFAULT_COMPRESSION,
) -> Layer:
    """Make a layer in `store` from what `fill` writes.

    The descriptor notes the layer key and the diff id, so that a manifest alone is enough to use
    the layer again.
    """
    with store.writer() as blob:
        packer = Packer(blob, compression)
        writer = LayerWriter(packer, roots)
        fill(writer)
        writer.finish()
        diff_id = packer.close()
    notes = {LAYER_KEY: key, DIFF_ID: diff_id}
    descriptor = Descriptor(_MEDIA_TYPES[compression], blob.digest, blob.size, annotations=notes)
    return Layer(descriptor, diff_id, store, created_by=created_by)
