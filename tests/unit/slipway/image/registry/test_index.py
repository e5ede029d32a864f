"""One name for several platforms."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from slipway.errors import TagTakenError, UsageError
from slipway.image.descriptor import INDEX, Descriptor, Platform
from slipway.image.layout import LayoutStore
from slipway.image.model import Image
from slipway.image.registry import Repository, make_index, pull_image, push_image, push_index

AMD64, ARM64 = Platform("linux", "amd64"), Platform("linux", "arm64")


@pytest.fixture
def images(make_image: Callable[..., Image]) -> tuple[Image, Image]:
    image = make_image(b"layer")
    return image, replace(image, config={**image.config, "architecture": "arm64"})


def test_each_platform_pulls_its_own(
    images: tuple[Image, Image], repository: Repository, tmp_path: Path
) -> None:
    for one in images:
        push_image(one, repository, [])
    named = push_index(images, repository, "v1.2.0", {"org.opencontainers.image.version": "1.2.0"})
    assert named.media_type == INDEX
    assert repository.resolve("v1.2.0") == named
    store = LayoutStore(tmp_path / "pulled")
    for platform, one in zip((AMD64, ARM64), images, strict=True):
        assert pull_image(repository, "v1.2.0", store, platform).digest == one.digest


def test_the_order_of_the_images_does_not_matter(images: tuple[Image, Image]) -> None:
    data = make_index(images)
    assert data == make_index(reversed(images))
    entries = [Descriptor.from_json(entry) for entry in json.loads(data)["manifests"]]
    assert [entry.platform for entry in entries] == [AMD64, ARM64]


def test_a_second_run_changes_nothing_and_other_images_are_refused(
    images: tuple[Image, Image], repository: Repository
) -> None:
    for one in images:
        push_image(one, repository, [])
    first = push_index(images, repository, "v1.2.0")
    assert push_index(images, repository, "v1.2.0") == first
    with pytest.raises(TagTakenError, match=r"v1\.2\.0 already names"):
        push_index(images[:1], repository, "v1.2.0")
    assert repository.resolve("v1.2.0") == first


def test_two_images_for_one_platform_are_no_index(images: tuple[Image, Image]) -> None:
    with pytest.raises(UsageError, match="one image a platform"):
        make_index([images[0], images[0]])
    with pytest.raises(UsageError):
        make_index([])
