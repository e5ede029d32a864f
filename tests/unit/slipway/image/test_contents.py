"""What is in an image is read as an overlay shows it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from slipway.errors import IntegrityError
from slipway.image.contents import Entry, Package, changes, packages, read
from slipway.image.layer import File, LayerWriter, Symlink, write_layer
from slipway.image.layout import LayoutStore
from slipway.image.model import Layer


@pytest.fixture
def store(tmp_path: Path) -> LayoutStore:
    return LayoutStore(tmp_path / "images")


def layer(store: LayoutStore, *entries: File | Symlink, opaque: str = "") -> Layer:
    def fill(writer: LayerWriter) -> None:
        if opaque:
            writer.opaque(opaque)
        for entry in entries:
            writer.add(entry)

    return write_layer(store, fill, roots=["a"], key="", created_by="")


def test_upper_layers_win_and_links_are_kept(store: LayoutStore) -> None:
    tree = read(
        [
            layer(store, File("a/x", b"1"), Symlink("a/l", "x")),
            layer(store, File("a/x", b"22", executable=True)),
        ]
    )
    assert tree.files["a/x"] == Entry("f", 0o755, 2, hashlib.sha256(b"22").hexdigest())
    assert tree.files["a/l"] == Entry("l", 0o777, 0, "x")
    assert tree.files["a"].kind == "d"


def test_whiteouts_hide_what_lies_below(store: LayoutStore) -> None:
    below = layer(store, File("a/x", b""), File("a/d/y", b""), File("a/d/e/z", b""))
    assert "a/d/e/z" not in read([below, layer(store, File("a/.wh.d", b""))]).files
    tree = read([below, layer(store, File("a/d/new", b""), opaque="a/d")])
    assert [p for p in sorted(tree.files) if p.startswith("a/d/")] == ["a/d/new"]
    assert "a/x" in tree.files


METADATA = b"Metadata-Version: 2.4\nName: Some_Pkg\nVersion: 1.2\nLicense-Expression: MIT\n\nbody"
STATUS = b"""Package: libc6
Status: install ok installed
Version: 2.36-9

Package: gone
Status: deinstall ok config-files
Version: 1
"""


def test_packages_are_those_that_are_installed(store: LayoutStore) -> None:
    site = "a/site-packages"
    tree = read(
        [
            layer(
                store,
                File(f"{site}/some_pkg-1.2.dist-info/METADATA", METADATA),
                File(f"{site}/other/_vendor/x-9.dist-info/METADATA", METADATA),
                File("var/lib/dpkg/status", STATUS),
            )
        ]
    )
    assert packages(tree) == [
        Package("deb", "libc6", "2.36-9"),
        Package("pypi", "some-pkg", "1.2", "MIT"),
    ]


def test_a_layer_with_other_bytes_is_refused(store: LayoutStore) -> None:
    made = layer(store, File("a/x", b"1" * 1000))
    path = store.blob_path(made.descriptor.digest)
    data = bytearray(path.read_bytes())
    data[9] ^= 1  # the header's field for the operating system: nothing that gzip minds
    path.write_bytes(bytes(data))
    with pytest.raises(IntegrityError, match=made.descriptor.digest):
        read([made])


def test_changes_are_signed() -> None:
    assert list(changes({"a": 1, "b": 1}, {"b": 2, "c": 1})) == [
        ("-", "a"),
        ("~", "b"),
        ("+", "c"),
    ]
