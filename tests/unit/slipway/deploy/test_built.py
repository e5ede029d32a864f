"""What was built is found by its tag, or by the alias of the branch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slipway.deploy.built import REF_NAME, built_images, find_built
from slipway.errors import StorageError, UsageError

ONE, TWO, THREE = (f"sha256:{digit * 64}" for digit in "123")


def store(folder: Path, *names: tuple[str, str]) -> Path:
    manifests = [
        {"mediaType": "x", "digest": digest, "size": 1, "annotations": {REF_NAME: name}}
        for digest, name in names
    ]
    manifests.append({"mediaType": "x", "digest": THREE, "size": 1})
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": manifests}))
    return folder


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return store(
        tmp_path,
        (ONE, "main-123456789-ci-20260101-1200"),
        (ONE, "main-latest"),
        (TWO, "main-latest-local"),
        (TWO, "main-abcdef012-local-20260102-0900-dirty"),
        (TWO, "main-latest-local-cu130"),
    )


def test_names_of_one_digest_are_one_image_whose_tag_is_no_alias(images: Path) -> None:
    one, two = built_images(images)
    assert (one.digest, one.tag) == (ONE, "main-123456789-ci-20260101-1200")
    assert two.tag == "main-abcdef012-local-20260102-0900-dirty"
    assert len(two.names) == 3


def test_of_two_aliases_of_a_branch_the_newer_image_counts(images: Path) -> None:
    assert find_built(images, branch="main").digest == TWO


def test_a_tag_names_its_image(images: Path) -> None:
    assert find_built(images, tag="main-123456789-ci-20260101-1200").digest == ONE


def test_a_variant_is_found_by_its_suffix(images: Path) -> None:
    assert find_built(images, branch="main", variant_suffix="-cu130").digest == TWO
    with pytest.raises(UsageError):
        find_built(images, branch="main", variant_suffix="-rocm")


def test_another_branch_has_nothing_and_the_remedy_lists_what_there_is(images: Path) -> None:
    with pytest.raises(UsageError) as caught:
        find_built(images, branch="topic")
    assert "topic-latest or topic-latest-local" in caught.value.what
    assert "main-latest-local" in caught.value.remedy


def test_before_the_first_build_the_remedy_is_to_build(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        find_built(tmp_path / "images", branch="main")
    assert caught.value.remedy == "make image"


@pytest.mark.parametrize("text", ["", "[]", '{"manifests": [1]}', '{"manifests": 3}'])
def test_a_damaged_index_is_said(tmp_path: Path, text: str) -> None:
    (tmp_path / "index.json").write_text(text)
    with pytest.raises(StorageError, match="is no index of an image layout"):
        built_images(tmp_path)
