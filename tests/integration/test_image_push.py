"""Builds that push to a real registry server: the registry's manifests are the whole cache."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slipway.build.run import Built
from slipway.errors import NetworkError, TagTakenError
from slipway.image.descriptor import MANIFEST
from slipway.image.layer import File, LayerWriter, write_layer
from slipway.image.layout import LayoutStore
from slipway.image.model import Image
from slipway.image.reference import Reference
from slipway.image.registry import Registry, Repository, pull_image, push_image
from support.project import IDENTITY, MATRIX, Project, lock_line, make_project, make_wheel
from support.services import registry


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    with registry(tmp_path / "registry") as found:
        yield found


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    for name, value in IDENTITY.items():
        monkeypatch.setenv(name, value)
    for name in ("CI", "SLIPWAY_BRANCH", "GITHUB_REF_NAME", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    return make_project(tmp_path)


def push(project: Project, address: str, **options: Any) -> Built:
    return project.build(target=Reference("team/tiny", address), push=True, **options)


def repository(address: str) -> Repository:
    return Registry(address).repository("team/tiny")


def stranger(project: Project, tmp_path: Path, name: str = "runner") -> Project:
    """A fresh clone on a machine with nothing: no store, no cache, no wheels, no base."""
    clone = Project(
        tmp_path / name / "checkout", tmp_path / name / "none", tmp_path / name / "cache"
    )
    subprocess.run(["git", "clone", "--quiet", str(project.root), str(clone.root)], check=True)
    return clone


def layer_files(project: Project) -> set[str]:
    folder = project.store.root / "blobs/sha256"
    return {f"sha256:{path.name}" for path in folder.iterdir()}


def test_a_push_leaves_the_image_what_it_stands_on_and_an_alias(
    project: Project, address: str
) -> None:
    built = push(project, address)
    there = repository(address)
    assert set(there.tags()) == {
        built.tag,
        "main-latest-local",
        built.plan.deps_tag,
        f"base-cpu-{built.plan.base.origin.split()[-1]}",
    }
    for name in (built.tag, "main-latest-local"):
        found = there.resolve(name)
        assert found is not None
        assert found.digest == built.image.digest
    assert built.published is not None
    assert built.published.reference == f"{address}/team/tiny:{built.tag}@{built.image.digest}"


def test_a_fresh_runner_is_fast_and_gives_the_same_image(
    project: Project, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = push(project, address)
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    runner = stranger(project, tmp_path)
    second = push(runner, address)
    assert second.plan.sentence == (
        f"fast: deps image {first.plan.deps_tag} is in {address}/team/tiny, only source layers move"
    )
    assert second.image.digest == first.image.digest
    assert second.published is not None
    layers = {layer.descriptor.digest for layer in second.image.layers}
    assert not layers & layer_files(runner), "a layer was downloaded"
    assert second.published.bytes_uploaded == 0
    assert second.published.requests <= 8


def test_an_edit_on_a_fresh_runner_uploads_its_layer_and_no_other(
    project: Project, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = push(project, address)
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    runner = stranger(project, tmp_path)
    runner.write("src/tiny/core/work.py", "VALUE = 2\n")
    runner.commit("edit")
    second = push(runner, address)
    before = {layer.descriptor.digest for layer in first.image.layers}
    moved = [layer for layer in second.image.layers if layer.descriptor.digest not in before]
    assert [layer.created_by for layer in moved] == ["source tiny/core", "version of tiny"]
    assert second.published is not None
    sizes = sum(layer.descriptor.size for layer in moved) + second.image.config_descriptor.size
    assert second.published.bytes_uploaded == sizes
    store = LayoutStore(tmp_path / "pulled")
    pulled = pull_image(repository(address), second.tag, store, second.image.platform)
    assert [layer.diff_id for layer in pulled.layers] == [
        layer.diff_id for layer in second.image.layers
    ]


def test_a_bump_on_a_fresh_runner_is_explained(
    project: Project, address: str, tmp_path: Path
) -> None:
    first = push(project, address)
    runner = stranger(project, tmp_path)
    small = make_wheel(project.wheels, "small", "1.1", {"small/__init__.py": b""})
    kept = lock_line(project.wheels / "big-2.5-py3-none-any.whl")
    runner.write("docker/locks/cpu.txt", lock_line(small) + kept)
    runner.commit("bump")
    second = push(runner, address)
    assert second.plan.sentence.endswith(
        f"yet, changed since {first.plan.deps_tag}: lock small 1.0 -> 1.1"
    )
    [big] = [x.descriptor.digest for x in second.image.layers if x.created_by == "wheels: big"]
    assert big not in layer_files(runner)
    assert [path.name for path in (runner.cache / "wheels").rglob("*.whl")] == [small.name]


def test_a_new_branch_takes_layers_from_the_trunk(
    project: Project, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = push(project, address)
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    runner = stranger(project, tmp_path)
    runner.git("checkout", "--quiet", "-b", "Feature/New")
    second = push(runner, address)
    assert second.alias.startswith("feature-new-")
    assert second.image.digest == first.image.digest
    assert not layer_files(runner) & {x.descriptor.digest for x in second.image.layers}


def test_an_older_build_that_ends_last_does_not_take_the_alias_back(
    project: Project, address: str, tmp_path: Path
) -> None:
    old = stranger(project, tmp_path, "old")
    project.write("src/tiny/core/work.py", "VALUE = 2\n")
    project.commit("newer")
    newest = push(project, address)
    old.git("fetch", "--quiet")
    late = push(old, address)
    assert late.published is not None
    assert late.published.alias == ""
    found = repository(address).resolve("main-latest-local")
    assert found is not None
    assert found.digest == newest.image.digest
    tagged = repository(address).resolve(late.tag)
    assert tagged is not None
    assert tagged.digest == late.image.digest


def test_a_published_tag_is_immutable_from_any_machine(
    project: Project, address: str, tmp_path: Path
) -> None:
    push(project, address, tag="v1")
    other = stranger(project, tmp_path)
    other.write("src/tiny/core/work.py", "VALUE = 2\n")
    with pytest.raises(TagTakenError, match="v1 already names"):
        push(other, address, tag="v1")
    assert "v1" not in other.store.tags()


def test_two_machines_in_one_minute_keep_both_images(
    project: Project, address: str, tmp_path: Path
) -> None:
    first = push(project, address)
    blank = Image({"os": "linux", "architecture": "amd64"}, ())
    push_image(blank, repository(address), ["taken"])
    other = stranger(project, tmp_path)
    plan_tag = first.plan.tag
    repository(address).put_manifest(blank.manifest_bytes, MANIFEST, plan_tag)
    second = push(other, address)
    if second.plan.tag != plan_tag:
        pytest.skip("a minute began between the builds")
    assert second.tag == plan_tag.replace("-local-", "-local-") + "-2"
    taken = repository(address).resolve(plan_tag)
    assert taken is not None
    assert taken.digest == blank.digest


def test_a_deps_image_in_the_registry_serves_a_build_that_does_not_push(
    project: Project, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = push(project, address)
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    runner = stranger(project, tmp_path)
    second = runner.build(target=Reference("team/tiny", address))
    assert second.plan.path == "fast"
    assert second.image.digest == first.image.digest
    layers = {layer.descriptor.digest for layer in second.image.layers}
    assert layers <= layer_files(runner), "the image is not whole here"


def test_a_registry_that_is_down_fails_a_push_and_not_a_build(project: Project) -> None:
    target = Reference("team/tiny", "127.0.0.1:1")
    with pytest.raises(NetworkError, match=r"127\.0\.0\.1:1"):
        project.build(target=target, push=True)
    built = project.build(target=target)
    assert built.plan.path == "full"
    assert any("is not looked into" in line for line in project.said)


def push_base(address: str, content: bytes, folder: Path) -> Image:
    store = LayoutStore(folder)

    def fill(writer: LayerWriter) -> None:
        writer.add(File("etc/base", content))

    layer = write_layer(store, fill, roots=["etc"], key="", created_by="base")
    config = {"os": "linux", "architecture": "amd64", "config": {"Env": ["PATH=/usr/bin", "X=1"]}}
    image = Image(config, (layer,))
    tag = f"v{len(content)}"
    push_image(image, Registry(address).repository("bases/python"), [tag])
    Registry(address).repository("bases/python").put_manifest(
        image.manifest_bytes, MANIFEST, "3.11"
    )
    return image


def test_a_registry_base_is_locked_mounted_and_followed(
    project: Project, address: str, tmp_path: Path
) -> None:
    from slipway.build import base as bases
    from slipway.build import matrix as matrices

    reference = f"{address}/bases/python:3.11"
    project.write("docker/matrix.toml", MATRIX.replace("registry.invalid/python:3.11", reference))
    project.store.untag("base-cpu")
    base = push_base(address, b"one", tmp_path / "base")
    row = matrices.load(project.root).variant("cpu")
    chosen = bases.choose(project.root, project.store, row, project.cache, update=True)
    assert bases.record(project.root, row, chosen)
    lock = (project.root / bases.LOCK).read_text()
    assert base.digest in lock
    project.commit("base")
    built = push(project, address)
    assert built.plan.base.digest == base.digest
    assert "X=1" in built.image.config["config"]["Env"]
    assert built.published is not None
    assert built.published.bytes_mounted == base.layers[0].descriptor.size
    assert built.image.labels["org.opencontainers.image.base.name"] == f"{reference}@{base.digest}"

    moved = push_base(address, b"two!", tmp_path / "base")
    runner = stranger(project, tmp_path)
    assert push(runner, address).image.digest == built.image.digest, "the lock did not hold"
    again = bases.choose(project.root, project.store, row, project.cache, update=True)
    bases.record(project.root, row, again)
    project.commit("base moved")
    rebuilt = push(project, address)
    assert rebuilt.plan.base.digest == moved.digest
    assert f"base {base.digest[7:19]} -> {moved.digest[7:19]}" in rebuilt.plan.why


@pytest.mark.docker
def test_docker_pulls_what_was_pushed(project: Project, address: str) -> None:
    built = push(project, address)
    name = f"{address}/team/tiny:{built.tag}"
    try:
        subprocess.run(["docker", "pull", "-q", name], check=True, capture_output=True)
        done = subprocess.run(
            ["docker", "inspect", name], check=True, capture_output=True, text=True
        )
        [found] = json.loads(done.stdout)
        assert found["Id"] == built.image.config_descriptor.digest
        assert found["RepoDigests"] == [f"{address}/team/tiny@{built.image.digest}"]
    finally:
        subprocess.run(["docker", "rmi", "-f", name], capture_output=True)


def test_skopeo_reads_what_was_pushed(project: Project, address: str) -> None:
    if shutil.which("skopeo") is None:
        pytest.skip("skopeo is not installed (apt-get install skopeo)")
    built = push(project, address)
    command = [
        "skopeo",
        "inspect",
        "--tls-verify=false",
        f"docker://{address}/team/tiny:{built.tag}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["Digest"] == built.image.digest


def test_promotion_and_pruning_in_a_registry(
    project: Project, address: str, tmp_path: Path
) -> None:
    from slipway.build.catalog import Shared, listing, promote
    from slipway.build.prune import prune
    from slipway.build.remote import Remote

    def shelf() -> Shared:
        return Shared(Remote(repository(address), project.store))

    first = push(project, address)
    project.write("src/tiny/core/work.py", "VALUE = 2\n")
    project.commit()
    second = push(project, address)
    project.write("src/tiny/core/work.py", "VALUE = 3\n")
    project.commit()
    third = push(project, address)
    assert promote(shelf(), first.tag, "v1.0") == first.image.digest
    with pytest.raises(TagTakenError, match=r"v1\.0 already names"):
        promote(shelf(), second.tag, "v1.0")
    prune(shelf(), project.root, keep=0, keep_days=0, dry_run=False)
    left = {name for row in listing(shelf()) for name in row.names}
    assert left == {first.tag, "v1.0", third.tag, "main-latest-local"}
    assert repository(address).resolve(second.tag) is None
    assert repository(address).resolve(first.plan.deps_tag) is not None


def test_ci_attaches_sbom_and_provenance(
    project: Project, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from slipway.build import attest

    monkeypatch.setenv("CI", "true")
    built = push(project, address)
    again = push(project, address)
    assert again.image.digest == built.image.digest
    there = repository(address)
    assert attest.attached(there, built.image.digest, attest.SBOM) == [attest.sbom(built.image)]
    [statement] = attest.attached(there, built.image.digest, attest.PROVENANCE)
    assert statement == attest.provenance(built.image, built.plan)


def test_a_workstation_attaches_only_on_request(project: Project, address: str) -> None:
    built = push(project, address)
    assert repository(address).referrers(built.image.digest) == []
    push(project, address, attest=True)
    assert len(repository(address).referrers(built.image.digest)) == 2
