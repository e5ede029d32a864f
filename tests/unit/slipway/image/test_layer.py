"""Layers are the same bytes on every machine, and declare nothing that belongs to the base."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from slipway.errors import IntegrityError
from slipway.image.descriptor import LAYER_ZSTD
from slipway.image.layer import (
    DIFF_ID,
    LAYER_KEY,
    MTIME,
    File,
    LayerWriter,
    Packer,
    Symlink,
    layer_key,
    safe_path,
    write_layer,
)
from slipway.image.layout import LayoutStore
from slipway.image.model import Layer


@pytest.fixture
def store(tmp_path: Path) -> LayoutStore:
    return LayoutStore(tmp_path / "images")


def make(store: LayoutStore, fill: Callable[[LayerWriter], None]) -> Layer:
    return write_layer(store, fill, roots=["opt/x"], key="the-key", created_by="test")


def plain(layer: Layer) -> bytes:
    with layer.open() as blob:
        return gzip.decompress(blob.read())


def everything(writer: LayerWriter) -> None:
    writer.opaque("opt/x/src")
    writer.add(File("opt/x/src/a.py", b"A = 1\n"))
    writer.add(File("opt/x/src/run", b"#!/bin/sh\n", executable=True))
    writer.add(Symlink("opt/x/src/link", "a.py"))
    writer.add(File(f"opt/x/src/{'long/' * 40}größe.txt", b"\xff" * 1000))


def test_a_layer_is_these_very_bytes(store: LayoutStore) -> None:
    """Written down, so that a change of the format or of the compressor is seen here first."""
    layer = make(store, everything)
    assert (
        layer.diff_id == "sha256:5aed0bee07ca81dd05f9f639afffc492f562a64c30afafa15b17378e679e06e3"
    )
    if (
        layer.descriptor.digest
        != "sha256:7ecac2d23755b8531e770789feba30c21820fe8a85dbc295273c40ac578d89e4"
    ):
        pytest.skip("isal compresses otherwise here: images of this machine get other digests")


def test_how_bytes_are_written_does_not_change_the_layer(store: LayoutStore) -> None:
    data = b"".join(hashlib.sha256(str(n).encode()).digest() * 3 for n in range(1 << 15))
    digests = set()
    for piece in (1 << 10, 12345, 1 << 22):
        with store.writer() as blob:
            hasher = Packer(blob)
            for start in range(0, len(data), piece):
                hasher.write(data[start : start + piece])
            diff_id = hasher.close()
        digests.add(blob.digest)
        assert diff_id == f"sha256:{hashlib.sha256(data).hexdigest()}"
    assert len(digests) == 1


def test_digest_and_diff_id_are_those_of_both_sides(store: LayoutStore) -> None:
    layer = make(store, everything)
    with layer.open() as blob:
        packed = blob.read()
    assert layer.descriptor.digest == f"sha256:{hashlib.sha256(packed).hexdigest()}"
    assert layer.descriptor.size == len(packed)
    assert layer.diff_id == f"sha256:{hashlib.sha256(plain(layer)).hexdigest()}"
    assert layer.descriptor.annotations == {LAYER_KEY: "the-key", DIFF_ID: layer.diff_id}
    assert packed[4:8] == bytes(4), "the gzip header carries a time"


def test_entries_are_owned_by_root_at_one_time(store: LayoutStore) -> None:
    with tarfile.open(fileobj=io.BytesIO(plain(make(store, everything)))) as tar:
        members = tar.getmembers()
    assert {(m.uid, m.gid, m.uname, m.gname, int(m.mtime)) for m in members} == {
        (0, 0, "", "", MTIME)
    }
    modes = {m.name: m.mode for m in members}
    assert modes["opt/x/src/a.py"] == 0o644
    assert modes["opt/x/src/run"] == modes["opt/x/src"] == 0o755


def test_only_directories_that_are_ours_are_declared(store: LayoutStore) -> None:
    with tarfile.open(fileobj=io.BytesIO(plain(make(store, everything)))) as tar:
        names = tar.getnames()
    assert "opt" not in names
    assert names.index("opt/x") < names.index("opt/x/src") < names.index("opt/x/src/.wh..wh..opq")
    assert names.index("opt/x/src/.wh..wh..opq") < names.index("opt/x/src/a.py")


def test_pax_headers_stand_only_where_they_are_needed(store: LayoutStore) -> None:
    def short(writer: LayerWriter) -> None:
        writer.add(File("opt/x/short", b""))

    data = plain(make(store, short))
    # Two directories... of which one is ours, one file, two blocks that end the tar.
    assert len(data) == (1 + 1 + 2) * 512


def test_a_large_file_streams_through(store: LayoutStore) -> None:
    content = bytes(range(256)) * (1 << 14)  # 4 MiB

    def fill(writer: LayerWriter) -> None:
        digest = writer.file("opt/x/big", io.BytesIO(content), len(content))
        assert digest == hashlib.sha256(content).hexdigest()

    with tarfile.open(fileobj=io.BytesIO(plain(make(store, fill)))) as tar:
        found = tar.extractfile("opt/x/big")
        assert found is not None
        assert found.read() == content


@pytest.mark.parametrize("actual", [9, 11])
def test_a_stream_of_another_length_is_refused(store: LayoutStore, actual: int) -> None:
    def fill(writer: LayerWriter) -> None:
        writer.file("opt/x/f", io.BytesIO(b"." * actual), 10)

    with pytest.raises(IntegrityError, match="is not 10 bytes long"):
        make(store, fill)
    assert list((store.root / "blobs/sha256").iterdir()) == []


def test_two_entries_of_one_name_are_refused(store: LayoutStore) -> None:
    def fill(writer: LayerWriter) -> None:
        writer.add(File("opt/x/f", b"1"))
        writer.add(File("opt/x/f", b"2"))

    with pytest.raises(IntegrityError, match="opt/x/f"):
        make(store, fill)


@pytest.mark.parametrize("name", ["/etc/passwd", "../up", "a/../../up", "", "a\0b", "a\\b"])
def test_a_path_that_leaves_its_folder_is_refused_by_name(name: str) -> None:
    with pytest.raises(IntegrityError, match="evil"):
        safe_path(name, "evil-1.0.whl")


def test_keys_differ_by_kind_and_content() -> None:
    keys = {layer_key("source", [1]), layer_key("source", [2]), layer_key("wheels", [1])}
    assert len(keys) == 3
    assert layer_key("source", {"b": 1, "a": 2}) == layer_key("source", {"a": 2, "b": 1})


def test_zstd_holds_the_same_tar(store: LayoutStore) -> None:
    import zstandard

    gzipped = make(store, everything)
    packed = write_layer(
        store, everything, roots=["opt/x"], key="", created_by="", compression="zstd"
    )
    assert packed.diff_id == gzipped.diff_id
    assert packed.descriptor.media_type == LAYER_ZSTD
    with packed.open() as blob:
        data = zstandard.ZstdDecompressor().decompressobj().decompress(blob.read())
    assert data == plain(gzipped)
    assert layer_key("source", 1, "zstd") != layer_key("source", 1)
