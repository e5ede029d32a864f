"""The base is chosen once, said with its reason, and the same wherever it is made."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from slipway.build import base as bases
from slipway.build import rootfs
from slipway.build.matrix import Rootfs, Variant, load
from slipway.errors import BaseError
from slipway.image import contents
from slipway.image.descriptor import Platform
from slipway.image.layout import LayoutStore
from support.project import Project, make_base

REPOSITORY = Path(__file__).resolve().parents[4]


@pytest.fixture
def variant(project: Project) -> Variant:
    """The variant, with a registry that refuses connections."""
    text = (project.root / "docker/matrix.toml").read_text()
    project.write("docker/matrix.toml", text.replace("registry.invalid", "127.0.0.1:1"))
    return load(project.root).variant("cpu")


def choose(project: Project, variant: Variant, **options: bool) -> bases.Base:
    return bases.choose(project.root, project.store, variant, project.cache, **options)


def test_a_choice_is_kept(project: Project, variant: Variant) -> None:
    made = make_base(project.store, project.root)
    found = choose(project, variant)
    assert found.digest == made.digest
    assert found.why == "made for the test"
    assert found.name.startswith("rootfs bookworm ")


def test_the_reason_is_no_part_of_the_digest(project: Project, variant: Variant) -> None:
    found = choose(project, variant)
    other = replace(found, why="another machine, another reason")
    assert found.image is not None
    assert other.noted.digest != found.noted.digest
    project.store.write_image(other.noted, [bases.tag(variant)], move=True)
    assert choose(project, variant).digest == found.digest


def test_a_rootfs_of_other_packages_is_another_base(project: Project, variant: Variant) -> None:
    assert variant.rootfs is not None
    more = replace(variant, rootfs=replace(variant.rootfs, packages=("python3.11", "more")))
    assert rootfs.origin_of(variant, variant.rootfs) != rootfs.origin_of(more, more.rootfs)  # type: ignore[arg-type]
    assert bases._read(project.store.read_image(bases.tag(variant)), more, "") is None
    arm = replace(variant, platform=Platform("linux", "arm64"))
    assert bases._read(project.store.read_image(bases.tag(variant)), arm, "") is None


def test_without_registry_and_rootfs_both_reasons_are_said(
    project: Project, variant: Variant, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.store.untag("base-cpu")
    none = replace(variant, rootfs=None)
    with pytest.raises(BaseError, match=r"127\.0\.0\.1:1/python:3\.11 cannot be had"):
        choose(project, none)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(BaseError, match="could not be reached, and mmdebstrap") as caught:
        choose(project, variant)
    assert caught.value.remedy == "apt-get install mmdebstrap"


def test_a_damaged_lock_is_said(project: Project, variant: Variant) -> None:
    project.write("docker/bases.lock.toml", "[cpu\n")
    with pytest.raises(BaseError, match=r"bases\.lock\.toml"):
        bases.locked_digest(project.root, variant)


def test_a_lock_for_another_reference_does_not_count(project: Project, variant: Variant) -> None:
    lock = f'[cpu]\nreference = "{{}}"\ndigest = "sha256:{"1" * 64}"\n'
    project.write("docker/bases.lock.toml", lock.format("other/python:3.11"))
    assert bases.locked_digest(project.root, variant) == ""
    project.write("docker/bases.lock.toml", lock.format(variant.base.reference))
    assert bases.locked_digest(project.root, variant) == f"sha256:{'1' * 64}"
    locked = choose(project, variant)
    assert locked.digest == choose(project, variant).digest, "the choice before it stays"


def needs_mmdebstrap() -> None:
    if shutil.which("mmdebstrap") is None:
        pytest.skip("mmdebstrap is not installed (apt-get install mmdebstrap)")


def test_what_mmdebstrap_says_is_passed_on(project: Project, variant: Variant) -> None:
    needs_mmdebstrap()
    assert variant.rootfs is not None
    odd = replace(variant.rootfs, packages=("no-such-package-slipway",))
    with pytest.raises(BaseError, match="could not make a bookworm rootfs") as caught:
        rootfs.make(project.store, replace(variant, rootfs=odd), odd, project.cache)
    assert "apt-get update" in caught.value.remedy
    assert not list((project.cache / "rootfs").rglob(".part-*"))


@pytest.mark.slow
def test_a_rootfs_made_twice_is_the_same_and_carries_nothing_of_this_machine(
    tmp_path: Path,
) -> None:
    needs_mmdebstrap()
    if os.geteuid() != 0:
        pytest.skip("without root this needs subordinate user ids (/etc/subuid)")
    variant = load(REPOSITORY).variant("cpu")
    assert isinstance(variant.rootfs, Rootfs)
    made = []
    for name in ("one", "two"):
        store = LayoutStore(tmp_path / name)
        made.append(rootfs.make(store, variant, variant.rootfs, tmp_path / f"{name}-cache"))
    assert made[0].digest == made[1].digest
    tree = contents.read(made[0].layers)
    names = set(tree.files)
    assert variant.rootfs.python.lstrip("/") in names
    for path in ("etc/hostname", "etc/resolv.conf", "etc/apt/sources.list", "dev/null"):
        assert path not in names
    machine = tree.files.get("etc/machine-id")
    assert machine is None or machine.size == 0
    emptied = ("var/cache/", "var/log/", "usr/share/doc/", "var/lib/apt/")
    assert not [n for n, e in tree.files.items() if n.startswith(emptied) and e.size]
    packages = {package.name for package in contents.packages(tree)}
    assert "libstdc++6" in packages
    assert "perl" not in packages
