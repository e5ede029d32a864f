"""Manifest, config and digest follow from layers and config; functions go from image to image."""

from __future__ import annotations

import io
import json
from typing import BinaryIO

from slipway.image.descriptor import LAYER_GZIP, Descriptor
from slipway.image.model import Image, Layer, append, with_config, with_labels


class Nowhere:
    """A source that is never asked."""

    def open(self, blob: Descriptor) -> BinaryIO:
        return io.BytesIO()


def layer(digit: str) -> Layer:
    blob = Descriptor(LAYER_GZIP, f"sha256:{digit * 64}", 10)
    return Layer(blob, f"sha256:{digit * 63}f", Nowhere(), created_by=f"layer {digit}")


IMAGE = Image(
    {"os": "linux", "architecture": "amd64"}, (layer("1"),), created="2026-01-01T00:00:00Z"
)


def test_the_manifest_names_the_config_and_the_layers() -> None:
    manifest = json.loads(IMAGE.manifest_bytes)
    config = json.loads(IMAGE.config_bytes)
    assert manifest["config"]["digest"] == IMAGE.config_descriptor.digest
    assert [entry["digest"] for entry in manifest["layers"]] == [f"sha256:{'1' * 64}"]
    assert config["rootfs"]["diff_ids"] == [f"sha256:{'1' * 63}f"]
    assert config["history"] == [{"created": "2026-01-01T00:00:00Z", "created_by": "layer 1"}]


def test_append_keeps_the_image_that_it_was_given() -> None:
    more = append(IMAGE, [layer("2")])
    assert len(more.layers) == 2
    assert len(IMAGE.layers) == 1
    assert more.digest != IMAGE.digest
    assert more.size > IMAGE.size


def test_labels_are_added_and_config_members_replaced() -> None:
    labelled = with_labels(with_labels(IMAGE, {"b": "1"}), {"a": "2"})
    assert dict(labelled.labels) == {"a": "2", "b": "1"}
    user = with_config(labelled, User="1:1")
    assert user.config["config"] == {"Labels": {"a": "2", "b": "1"}, "User": "1:1"}


def test_equal_images_have_one_digest_whatever_the_order_of_members() -> None:
    other = Image({"architecture": "amd64", "os": "linux"}, (layer("1"),), created=IMAGE.created)
    assert other.digest == IMAGE.digest
