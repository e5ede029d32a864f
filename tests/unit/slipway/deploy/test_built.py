"""What was built is found by its tag, or by the alias of the branch."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from slipway.build.git import Checkout
from slipway.deploy.built import LOOPBACK, find_built, pin
from slipway.deploy.load import load_all
from slipway.errors import UsageError
from slipway.image.descriptor import MANIFEST, Descriptor
from slipway.image.layout import LayoutStore

ROOT = Path(__file__).resolve().parents[4]
SITE = load_all(ROOT)["local-cpu"].site
ONE, TWO, THREE = (Descriptor(MANIFEST, f"sha256:{digit * 64}", 1) for digit in "123")
CI_TAG, LOCAL_TAG = "main-123456789-ci-20260101-1200", "main-abcdef012-local-20260102-0900-dirty"


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    root = tmp_path / "checkout"
    shutil.copytree(ROOT / "docker", root / "docker")
    git = ["git", "-C", str(root), "-c", "user.name=t", "-c", "user.email=t@t"]
    subprocess.run([*git, "init", "-q", "-b", "main"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    return Checkout(root)


@pytest.fixture
def store(tmp_path: Path) -> LayoutStore:
    images = LayoutStore(tmp_path / "images")
    images.tag("deps-cpu-123456789012", THREE)
    images.tag(CI_TAG, ONE)
    images.tag("main-latest", ONE)
    images.tag(LOCAL_TAG, TWO)
    images.tag("main-latest-local", TWO)
    return images


def test_the_newest_image_of_the_branch_is_pinned_at_loopback_under_its_tag(
    checkout: Checkout, store: LayoutStore
) -> None:
    found = find_built(checkout, store, SITE)
    assert str(found.reference) == f"{LOOPBACK}/slipway/keel@{TWO.digest}"
    assert found.tag == LOCAL_TAG


def test_an_alias_that_moves_becomes_the_newest(checkout: Checkout, store: LayoutStore) -> None:
    store.tag("main-latest", THREE, move=True)
    assert find_built(checkout, store, SITE).reference.digest == THREE.digest


def test_of_two_tags_of_one_image_the_newer_names_it(
    checkout: Checkout, store: LayoutStore
) -> None:
    store.tag(f"{LOCAL_TAG}-2", TWO)
    assert find_built(checkout, store, SITE).tag == f"{LOCAL_TAG}-2"


def test_a_tag_names_its_image_and_a_registry_its_place(
    checkout: Checkout, store: LayoutStore
) -> None:
    found = find_built(
        checkout, store, SITE, tag=CI_TAG, registry="r.example", repository="team/keel"
    )
    assert str(found.reference) == f"r.example/team/keel@{ONE.digest}"
    assert found.tag == CI_TAG


def test_another_variant_has_aliases_of_its_own(checkout: Checkout, store: LayoutStore) -> None:
    site = replace(SITE, image_variant="cu130")
    with pytest.raises(UsageError) as caught:
        find_built(checkout, store, site)
    assert "main-latest-cu130 or main-latest-local-cu130" in caught.value.what
    store.tag("main-latest-local-cu130", THREE)
    assert find_built(checkout, store, site).reference.digest == THREE.digest


def test_another_branch_has_nothing_and_the_remedy_lists_the_tags(
    checkout: Checkout, store: LayoutStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIPWAY_BRANCH", "topic")
    with pytest.raises(UsageError, match="has no image named topic-latest or") as caught:
        find_built(checkout, store, SITE)
    assert caught.value.remedy.endswith(f"{CI_TAG}, {LOCAL_TAG}")


def test_before_the_first_build_the_remedy_is_to_build(checkout: Checkout, tmp_path: Path) -> None:
    store = LayoutStore(tmp_path / "none")
    store.tag("base-cpu-1", ONE)
    with pytest.raises(UsageError, match="no image was built yet") as caught:
        find_built(checkout, store, SITE)
    assert caught.value.remedy == "make image"


@pytest.mark.parametrize(
    ("text", "tag", "named"),
    [
        (f"r.example/keel:v1@{ONE.digest}", "", "v1"),
        (f"r.example/keel@{ONE.digest}", "", "1" * 12),
        (f"r.example/keel:v1@{ONE.digest}", "mine", "mine"),
    ],
)
def test_a_pinned_reference_names_the_archive(text: str, tag: str, named: str) -> None:
    assert pin(text, tag).tag == named


def test_a_reference_without_a_digest_is_refused() -> None:
    with pytest.raises(UsageError, match="is not pinned by digest"):
        pin("r.example/keel:v1")
