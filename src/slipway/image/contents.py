"""What is really in an image: its files as an overlay shows them, and the packages they install."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import BinaryIO, cast

from slipway.errors import IntegrityError
from slipway.image.descriptor import LAYER_ZSTD
from slipway.image.model import Layer, canonical_json

# Annotation of a layer's descriptor: the packages that it installs, as JSON.
PACKAGES = "org.slipway.packages"

OPAQUE = ".wh..wh..opq"
WHITEOUT = ".wh."

# What a package carries inside itself (`setuptools/_vendor/…`) is not installed.
_DIST = re.compile(r"(?!.*/_vendor/)(?:.*/)?[^/]+\.dist-info/METADATA")
_DPKG = "var/lib/dpkg/status"


@dataclass(frozen=True)
class Entry:
    """One path: its kind (`f`, `d`, `l` and so on), mode, size, and sha256 or link target."""

    kind: str
    mode: int
    size: int
    content: str


@dataclass(frozen=True)
class Package:
    """An installed package; `kind` is purl's: `pypi` or `deb`."""

    kind: str
    name: str
    version: str
    licence: str = ""

    @classmethod
    def from_metadata(cls, text: str) -> Package:
        """Read a Python distribution's METADATA."""
        from email.parser import HeaderParser

        metadata = HeaderParser().parsestr(text)
        name = re.sub(r"[-_.]+", "-", str(metadata.get("Name", ""))).lower()
        licence = str(metadata.get("License-Expression") or "")
        return cls("pypi", name, str(metadata.get("Version", "")), licence)


def note_packages(layer: Layer, found: Iterable[Package]) -> Layer:
    """`layer` with what it installs in its descriptor, so that a manifest alone tells it."""
    listed = sorted([p.kind, p.name, p.version, p.licence] for p in found)
    notes = {**layer.descriptor.annotations, PACKAGES: canonical_json(listed).decode()}
    return replace(layer, descriptor=replace(layer.descriptor, annotations=notes))


def noted_packages(layer: Layer) -> list[Package] | None:
    """What `note_packages` wrote, or None where the layer is not known that well."""
    text = layer.descriptor.annotations.get(PACKAGES)
    return None if text is None else [Package(*entry) for entry in json.loads(text)]


@dataclass
class Tree:
    """Files by path, and the texts of those that describe packages."""

    files: dict[str, Entry] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    def hide(self, path: str, *, below: bool) -> None:
        """Forget what is at `path` (unless `below`) and everything below it."""
        for known in (self.files, self.texts):
            gone = [name for name in known if name.startswith(f"{path}/")]
            for name in gone if below else [*gone, *([path] if path in known else [])]:
                del known[name]


def read(layers: Iterable[Layer]) -> Tree:
    """Apply layers from the bottom up (image-spec 1.1, layer.md).

    Raises:
        IntegrityError: a layer is not what its digest says, or no tar.
    """
    tree = Tree()
    for layer in layers:
        _apply(tree, layer)
    return tree


def packages(tree: Tree) -> list[Package]:
    """Python distributions and Debian packages, sorted."""
    found = set()
    for path, text in tree.texts.items():
        if path == _DPKG:
            found |= set(_debian(text))
        else:
            found.add(Package.from_metadata(text))
    return sorted(found, key=lambda package: (package.kind, package.name, package.version))


def _debian(status: str) -> Iterator[Package]:
    for paragraph in status.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Version|Status): (.+)$", paragraph, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed"):
            yield Package("deb", fields["Package"], fields["Version"])


def _apply(tree: Tree, layer: Layer) -> None:
    digest = hashlib.sha256()
    with layer.open() as blob:
        try:
            with tarfile.open(
                fileobj=_plain(_Counted(blob, digest.update), layer), mode="r|"
            ) as tar:
                for member in tar:
                    _add(tree, tar, member)
        except (tarfile.TarError, EOFError, gzip.BadGzipFile) as error:
            raise IntegrityError(
                f"layer {layer.descriptor.digest} cannot be read: {error}"
            ) from error
        while chunk := blob.read(1 << 20):
            digest.update(chunk)
    if f"sha256:{digest.hexdigest()}" != layer.descriptor.digest:
        raise IntegrityError(
            f"layer {layer.descriptor.digest} has other bytes than its digest says"
        )


def _add(tree: Tree, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
    path = member.name.removeprefix("./").rstrip("/")
    folder, _, name = path.rpartition("/")
    if name == OPAQUE:
        tree.hide(folder, below=True)
    elif name.startswith(WHITEOUT):
        tree.hide(f"{folder}/{name.removeprefix(WHITEOUT)}".lstrip("/"), below=False)
    elif member.isfile():
        stream = tar.extractfile(member)
        assert stream is not None
        wanted = path == _DPKG or _DIST.fullmatch(path)
        data = stream.read() if wanted else b""
        digest = hashlib.sha256(data) if wanted else hashlib.file_digest(stream, "sha256")  # type: ignore[arg-type]
        tree.files[path] = Entry("f", member.mode, member.size, digest.hexdigest())
        if wanted:
            tree.texts[path] = data.decode("utf-8", "replace")
    elif path not in ("", "."):
        kind = "d" if member.isdir() else "l" if member.issym() else member.type.decode()
        tree.files[path] = Entry(kind, member.mode, 0, member.linkname)


class _Counted(io.RawIOBase):
    """A stream whose bytes are told to `tell` as they are read."""

    def __init__(self, stream: BinaryIO, note: Callable[[bytes], None]) -> None:
        self._stream, self._note = stream, note

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self._stream.read(len(buffer))
        self._note(data)
        buffer[: len(data)] = data
        return len(data)


def _plain(stream: _Counted, layer: Layer) -> BinaryIO:
    kind = layer.descriptor.media_type
    plain = io.BufferedReader(stream)
    if kind == LAYER_ZSTD:
        import zstandard

        return cast(BinaryIO, zstandard.ZstdDecompressor().stream_reader(plain))
    if kind.endswith("gzip"):
        from isal import igzip

        return cast(BinaryIO, igzip.GzipFile(fileobj=plain, mode="rb"))  # type: ignore[no-untyped-call]
    return plain


def changes(before: Mapping[str, object], after: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """What differs between two mappings: `+`, `-` or `~`, and the key, in the keys' order."""
    for key in sorted({*before, *after}):
        if key not in before:
            yield "+", key
        elif key not in after:
            yield "-", key
        elif before[key] != after[key]:
            yield "~", key
