"""Source layers: one per package, keyed by git's tree ids, holding what git does not ignore."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from pathlib import Path

import pytest

from slipway.build import source
from slipway.build.git import Checkout
from slipway.build.matrix import load
from slipway.errors import RepositoryError
from slipway.image.model import Layer
from support.project import Project

ROOT = "opt/tiny/src"


def made(project: Project, known: dict[str, Layer] | None = None) -> list[Layer]:
    engine = load(project.root).engine
    metadata = source.dist_info(engine, "tiny", "1.0", {"tiny": "tiny.cli:main"})
    with Checkout(project.root).snapshot(engine.source) as (checkout, tree):
        return source.layers(checkout, tree, engine, metadata, project.store, (known or {}).get)


def files(layer: Layer) -> dict[str, bytes]:
    with layer.open() as blob, tarfile.open(fileobj=io.BytesIO(gzip.decompress(blob.read()))) as t:
        return {m.name: t.extractfile(m).read() for m in t.getmembers() if m.isfile()}  # type: ignore[union-attr]


def all_files(project: Project) -> dict[str, bytes]:
    return {name: data for layer in made(project) for name, data in files(layer).items()}


def keys(project: Project) -> list[str]:
    return [layer.descriptor.annotations["org.slipway.layer-key"] for layer in made(project)]


def names(project: Project) -> list[str]:
    return [layer.created_by for layer in made(project)]


def test_each_package_has_a_layer_and_the_first_hides_what_lies_below(project: Project) -> None:
    by_name = {layer.created_by: list(files(layer)) for layer in made(project)}
    assert by_name == {
        "place of tiny": [f"{ROOT}/.wh..wh..opq"],
        "source tiny": [f"{ROOT}/tiny/__init__.py", f"{ROOT}/tiny/cli.py"],
        "source tiny/core": [f"{ROOT}/tiny/core/__init__.py", f"{ROOT}/tiny/core/work.py"],
        "source tiny/extra": [f"{ROOT}/tiny/extra/__init__.py"],
        "version of tiny": [
            f"{ROOT}/tiny-1.0.dist-info/METADATA",
            f"{ROOT}/tiny-1.0.dist-info/entry_points.txt",
        ],
    }


def test_what_changed_last_lies_on_top_of_the_source(project: Project) -> None:
    """A Docker Engine unpacks anew every layer above the lowest that changed."""
    place, version = "place of tiny", "version of tiny"
    core, extra, top = "source tiny/core", "source tiny/extra", "source tiny"
    project.write("src/tiny/extra/more.py", "")
    project.commit()
    assert names(project) == [place, core, top, extra, version]
    project.write("src/tiny/cli.py", "")
    assert names(project) == [place, core, extra, top, version]
    project.commit()
    assert names(project) == [place, core, extra, top, version]
    project.write("src/tiny/core/new.py", "")
    assert names(project) == [place, extra, top, core, version]


def test_an_edit_changes_one_layer(project: Project) -> None:
    before = keys(project)
    project.write("src/tiny/core/work.py", "VALUE = 2\n")
    after = keys(project)
    assert len(set(after) - set(before)) == 1
    assert len(after) == len(before)


def test_a_commit_of_what_was_built_changes_nothing(project: Project) -> None:
    project.write("src/tiny/core/work.py", "VALUE = 2\n")
    project.write("src/tiny/core/new.py", "")
    edited = keys(project)
    project.commit()
    assert keys(project) == edited


def test_known_layers_are_not_made_again(project: Project) -> None:
    known = {
        layer.descriptor.annotations["org.slipway.layer-key"]: layer for layer in made(project)
    }
    blobs = project.store.root / "blobs/sha256"
    for path in blobs.iterdir():
        path.unlink()
    assert made(project, known) == list(known.values())
    assert list(blobs.iterdir()) == []


def test_untracked_files_travel_and_ignored_ones_do_not(project: Project) -> None:
    project.write("src/tiny/core/draft.py", "")
    project.write("src/tiny/core/__pycache__/work.cpython-311.pyc", "stale")
    found = all_files(project)
    assert f"{ROOT}/tiny/core/draft.py" in found
    assert not [name for name in found if name.endswith(".pyc")]


def test_deleted_files_are_gone(project: Project) -> None:
    (project.root / "src/tiny/core/work.py").unlink()
    assert f"{ROOT}/tiny/core/work.py" not in all_files(project)


def test_the_checkout_and_its_index_stay_as_they_were(project: Project) -> None:
    project.write("src/tiny/core/draft.py", "")
    objects = sorted(p for p in (project.root / ".git/objects").rglob("*") if p.is_file())
    made(project)
    assert project.git("status", "--porcelain") == "?? src/tiny/core/draft.py"
    assert sorted(p for p in (project.root / ".git/objects").rglob("*") if p.is_file()) == objects


def test_modes_come_from_git_and_not_from_the_umask(project: Project) -> None:
    path = project.root / "src/tiny/core/run.sh"
    project.write("src/tiny/core/run.sh", "#!/bin/sh\n")
    path.chmod(0o700)
    (project.root / "src/tiny/core/work.py").chmod(0o600)
    core = next(layer for layer in made(project) if layer.created_by == "source tiny/core")
    with core.open() as blob:
        data = gzip.decompress(blob.read())
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        modes = {Path(m.name).name: m.mode for m in tar.getmembers()}
    assert modes["run.sh"] == 0o755
    assert modes["work.py"] == 0o644


def test_names_of_any_script_travel(project: Project) -> None:
    project.write("src/tiny/core/größe 大.txt", "x")
    project.write('src/tiny/core/a"b.txt', "y")
    found = all_files(project)
    assert found[f"{ROOT}/tiny/core/größe 大.txt"] == b"x"
    assert found[f'{ROOT}/tiny/core/a"b.txt'] == b"y"


def test_a_link_stays_inside_or_is_refused(project: Project) -> None:
    link = project.root / "src/tiny/core/link.py"
    link.symlink_to("work.py")
    made(project)
    link.unlink()
    for target in ("/etc/passwd", "../../../../etc/passwd", "../../../outside"):
        link.symlink_to(target)
        with pytest.raises(RepositoryError, match=r"link\.py leaves the source tree") as caught:
            made(project)
        assert target in caught.value.what
        link.unlink()


def test_a_repository_inside_the_source_is_refused_by_name(project: Project) -> None:
    inner = project.root / "src/tiny/core/vendored"
    inner.mkdir()
    (inner / "x.py").write_text("")
    env = {**os.environ}
    import subprocess

    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "x"]):
        subprocess.run(["git", *words], cwd=inner, env=env, check=True)
    with pytest.raises(RepositoryError, match=r"core/vendored is a submodule"):
        made(project)


def test_many_packages_share_layers(project: Project) -> None:
    for number in range(150):
        project.write(f"src/tiny/p{number:03}/__init__.py", f"N = {number}\n")
    layers = made(project)
    assert len(layers) <= source.MAX_SOURCE_LAYERS
    assert len(all_files(project)) == 5 + 3 + 150


def test_an_empty_or_missing_source_tree_is_refused(project: Project) -> None:
    engine = load(project.root).engine
    checkout = Checkout(project.root)
    for path in sorted((project.root / "src/tiny").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    with pytest.raises(RepositoryError, match="src/tiny"):
        made(project)
    (project.root / engine.source).rmdir()
    with (
        pytest.raises(RepositoryError, match="no source tree src/tiny"),
        checkout.snapshot(engine.source),
    ):
        pass
