"""Wheels come through pip for the target, are kept by their hash, and are believed only by it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from slipway.build import wheels
from slipway.build.lock import Lock, load
from slipway.build.matrix import Variant
from slipway.build.matrix import load as load_matrix
from slipway.errors import IntegrityError, LockError, NetworkError
from slipway.image.descriptor import Platform
from support.project import Project, lock_line, make_wheel


@pytest.fixture
def variant(project: Project) -> Variant:
    return load_matrix(project.root).variant("cpu")


def locked(project: Project, variant: Variant, *files: Path) -> Lock:
    project.write(str(variant.lock), "".join(map(lock_line, files)))
    return load(project.root, variant)


@contextmanager
def offline(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """pip finds nothing anywhere; the index it is given refuses connections."""
    with monkeypatch.context() as patch:
        patch.delenv("PIP_NO_INDEX")
        patch.delenv("PIP_FIND_LINKS")
        patch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
        patch.setenv("PIP_RETRIES", "0")
        yield


def test_a_second_fetch_needs_no_index(
    project: Project, variant: Variant, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = load(project.root, variant)
    first = wheels.fetch(lock, variant, project.cache)
    assert {name: path.name for name, path in first.items()} == {
        "small": "small-1.0-py3-none-any.whl",
        "big": "big-2.5-py3-none-any.whl",
    }
    with offline(monkeypatch):
        assert wheels.fetch(lock, variant, project.cache) == first


def test_no_index_and_an_empty_cache_is_a_network_error(
    project: Project, variant: Variant, monkeypatch: pytest.MonkeyPatch
) -> None:
    with offline(monkeypatch), pytest.raises(NetworkError, match="could not fetch") as caught:
        wheels.fetch(load(project.root, variant), variant, project.cache)
    assert "PIP_INDEX_URL" in caught.value.remedy
    assert [path.name for path in (project.cache / "wheels").iterdir()] == ["chosen"]


def test_a_damaged_file_in_the_cache_is_fetched_again(project: Project, variant: Variant) -> None:
    lock = load(project.root, variant)
    path = wheels.fetch(lock, variant, project.cache)["big"]
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert wheels.fetch(lock, variant, project.cache)["big"].read_bytes() == whole


def test_a_file_with_another_hash_is_refused_by_name(project: Project, variant: Variant) -> None:
    lock = load(project.root, variant)
    make_wheel(project.wheels, "big", "2.5", {"big/__init__.py": b"import os\n"})
    with pytest.raises(IntegrityError, match=r"big==2.5 of the index has another hash"):
        wheels.fetch(lock, variant, project.cache)


def test_a_source_distribution_is_refused_by_name(project: Project, variant: Variant) -> None:
    wheel = make_wheel(project.wheels, "only", "1.0", {})
    sdist = project.wheels / "only-1.0.tar.gz"
    sdist.write_bytes(b"never opened")
    lock = locked(project, variant, wheel)
    wheel.unlink()
    pin = replace(
        lock.pins["only"], hashes=(f"sha256:{hashlib.sha256(sdist.read_bytes()).hexdigest()}",)
    )
    with pytest.raises(LockError, match=r"only==1.0 has no wheel for Python 3.11") as caught:
        wheels.fetch(Lock(lock.path, {"only": pin}), variant, project.cache)
    assert "Dockerfile builder" in caught.value.remedy


def test_the_targets_platform_decides_and_not_this_machines(
    project: Project, variant: Variant
) -> None:
    tags = ["cp311-cp311-manylinux_2_28_x86_64", "cp311-cp311-manylinux_2_28_aarch64"]
    tags += ["py3-none-any"]
    files = [
        make_wheel(project.wheels, "native", "1.0", {"native.py": tag.encode()}, tag=tag)
        for tag in tags
    ]
    lock = locked(project, variant, files[0])
    hashes = tuple(f"sha256:{hashlib.sha256(f.read_bytes()).hexdigest()}" for f in files)
    lock = Lock(lock.path, {"native": replace(lock.pins["native"], hashes=hashes)})
    arm = replace(variant, platform=Platform("linux", "arm64"))
    # The order matters: what one variant fetched must not be what the next one gets.
    for row, expected in ((arm, files[1]), (variant, files[0]), (arm, files[1])):
        assert wheels.fetch(lock, row, project.cache)["native"].name == expected.name


def test_a_wheel_that_needs_a_newer_glibc_is_not_taken(project: Project, variant: Variant) -> None:
    tag = "cp311-cp311-manylinux_2_39_x86_64"
    lock = locked(project, variant, make_wheel(project.wheels, "new", "1.0", {}, tag=tag))
    with pytest.raises(LockError, match=r"new==1.0 has no wheel"):
        wheels.fetch(lock, variant, project.cache)
    newer = replace(variant, glibc="2.39")
    assert wheels.fetch(lock, newer, project.cache)["new"].name.endswith(f"{tag}.whl")
