"""The tar for `docker load`: complete, reproducible, and never half-written."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from slipway.errors import IntegrityError
from slipway.image.archive import write_docker_archive
from slipway.image.layer import File, LayerWriter, write_layer
from slipway.image.layout import LayoutStore
from slipway.image.model import Image, sha256


@pytest.fixture
def image(tmp_path: Path) -> Image:
    store = LayoutStore(tmp_path / "images")

    def fill(writer: LayerWriter) -> None:
        writer.add(File("opt/x", b"content"))

    layer = write_layer(store, fill, roots=["opt"], key="k", created_by="test")
    config = {"os": "linux", "architecture": "amd64", "config": {}}
    return Image(config, (layer, layer))


def test_it_names_config_layers_and_tags(image: Image, tmp_path: Path) -> None:
    path = tmp_path / "out" / "image.tar"
    write_docker_archive(image, ["team/keel:v1"], path)
    with tarfile.open(path) as tar:
        members = {m.name: tar.extractfile(m).read() for m in tar.getmembers()}  # type: ignore[union-attr]
    [entry] = json.loads(members["manifest.json"])
    assert entry["RepoTags"] == ["team/keel:v1"]
    assert members[entry["Config"]] == image.config_bytes
    assert len(entry["Layers"]) == 2
    for name, layer in zip(entry["Layers"], image.layers, strict=True):
        assert sha256(members[name]) == layer.descriptor.digest
    assert list(path.parent.iterdir()) == [path]


def test_equal_images_give_equal_archives(image: Image, tmp_path: Path) -> None:
    for name in ("a.tar", "b.tar"):
        write_docker_archive(image, ["x:y"], tmp_path / name)
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()


def test_a_damaged_layer_is_refused_and_nothing_is_left(image: Image, tmp_path: Path) -> None:
    blob = image.layers[0].descriptor
    path = LayoutStore(tmp_path / "images").blob_path(blob.digest)
    path.write_bytes(b"\0" * blob.size)
    target = tmp_path / "out" / "image.tar"
    with pytest.raises(IntegrityError, match=blob.digest):
        write_docker_archive(image, ["x:y"], target)
    assert list(target.parent.iterdir()) == []
