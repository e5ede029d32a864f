"""One build from plan to names: what moves, what stays, and what is said of it."""

from __future__ import annotations

import gzip
import io
import tarfile
from datetime import UTC, datetime
from pathlib import Path

import pytest

from slipway.build import base as bases
from slipway.build import matrix as matrices
from slipway.build import rootfs
from slipway.build.run import Built
from slipway.errors import LockError, RepositoryError, TagTakenError
from slipway.image import contents
from slipway.image.layer import LAYER_KEY, File, LayerWriter, write_layer
from slipway.image.model import Image
from support.project import Project, lock_line, make_project, make_wheel


def layer_keys(built: Built) -> list[str]:
    return [
        layer.descriptor.annotations[LAYER_KEY] for layer in built.image.layers[1:]
    ]  # all but the base's


def tree(image: Image) -> dict[str, bytes]:
    """Files of an image as an overlay shows them."""
    found: dict[str, bytes] = {}
    for layer in image.layers:
        with layer.open() as blob:
            data = gzip.decompress(blob.read())
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            for member in tar:
                folder, _, name = member.name.rpartition("/")
                if name == ".wh..wh..opq":
                    found = {k: v for k, v in found.items() if not k.startswith(f"{folder}/")}
                elif member.isfile():
                    found[member.name] = tar.extractfile(member).read()  # type: ignore[union-attr]
                elif member.issym():
                    found[member.name] = b"-> " + member.linkname.encode()
    return found


def test_the_first_build_is_full_and_complete(project: Project) -> None:
    built = project.build()
    assert built.plan.sentence.startswith("full: no deps image for key ")
    assert built.plan.sentence.endswith("… yet")
    files = tree(built.image)
    venv = "opt/tiny/venv"
    site = f"{venv}/lib/python3.11/site-packages"
    assert files["etc/base"] == b"base\n"
    assert files[f"{site}/big/__init__.py"] == b"VALUE = 'big'\n"
    assert files[f"{site}/tiny-source.pth"] == b"/opt/tiny/src\n"
    assert files[f"{venv}/bin/python"] == b"-> /usr/bin/python3.11"
    assert files[f"{venv}/pyvenv.cfg"].startswith(b"home = /usr/bin\n")
    assert files[f"{venv}/bin/tiny"].startswith(b"#!/opt/tiny/venv/bin/python\n")
    assert files["opt/tiny/src/tiny/core/work.py"] == b"VALUE = 1\n"


def test_the_config_says_what_runs_and_where_it_is_from(project: Project) -> None:
    built = project.build()
    config = built.image.config["config"]
    assert config["Entrypoint"] == ["tiny"]
    assert config["User"] == "10001:10001"
    assert "PATH=/opt/tiny/venv/bin:/usr/bin:/bin" in config["Env"]
    commit = project.git("rev-parse", "HEAD")
    labels = dict(built.image.labels)
    assert labels.pop("org.opencontainers.image.version") == f"0.1.0.dev0+g{commit[:9]}"
    assert labels == {
        "org.opencontainers.image.title": "tiny",
        "org.opencontainers.image.revision": commit,
        "org.opencontainers.image.created": "2026-01-02T03:04:05Z",
        "org.opencontainers.image.licenses": "",
        "org.opencontainers.image.base.name": built.plan.base.name,
        "org.opencontainers.image.base.digest": built.plan.base.digest,
        "org.slipway.dependency-key": built.plan.key.value,
        "org.slipway.variant": "cpu",
        "org.slipway.commit": commit,
    }


def test_nothing_changed_gives_the_same_digest_and_tag(project: Project) -> None:
    first = project.build()
    blobs = sorted((project.store.root / "blobs/sha256").iterdir())
    second = project.build()
    assert second.plan.sentence == (
        f"fast: deps image {first.plan.deps_tag} is in {project.store.root}, "
        "only source layers move"
    )
    assert (second.image.digest, second.tag) == (first.image.digest, first.tag)
    assert sorted((project.store.root / "blobs/sha256").iterdir()) == blobs


def test_an_edit_moves_its_package_and_the_version(project: Project) -> None:
    first = project.build()
    project.write("src/tiny/core/work.py", "VALUE = 2\n")
    second = project.build()
    moved = set(layer_keys(second)) - set(layer_keys(first))
    names = {
        layer.created_by
        for layer in second.image.layers
        if layer.descriptor.annotations.get(LAYER_KEY) in moved
    }
    assert names == {"version of tiny", "source tiny/core"}
    assert second.tag.endswith("-dirty")
    assert tree(second.image)["opt/tiny/src/tiny/core/work.py"] == b"VALUE = 2\n"


def test_full_makes_the_dependencies_anew_and_gives_the_same(project: Project) -> None:
    first = project.build()
    again = project.build(full=True)
    assert again.plan.sentence == "full: FULL=1 was asked for"
    assert again.image.digest == first.image.digest


def test_two_folders_give_one_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders, umask, caches and the clock differ; commit, lock and base do not."""
    digests = []
    for name in ("one", "a/much/longer/name"):
        monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / name / "wheels"))
        import os

        old = os.umask(0o077 if name == "one" else 0o002)
        try:
            digests.append(make_project(tmp_path / name).build().image.digest)
        finally:
            os.umask(old)
    assert digests[0] == digests[1]


def test_a_bump_moves_one_dependency_layer_and_says_which(project: Project) -> None:
    first = project.build()
    small = make_wheel(project.wheels, "small", "1.1", {"small/__init__.py": b"VALUE = 'new'\n"})
    big = project.wheels / "big-2.5-py3-none-any.whl"
    project.write("docker/locks/cpu.txt", lock_line(small) + lock_line(big))
    project.commit()
    second = project.build()
    assert second.plan.sentence.endswith(
        f"yet, changed since {first.plan.deps_tag}: lock small 1.0 -> 1.1"
    )
    dependency = {
        k
        for k, layer in zip(layer_keys(second), second.image.layers[1:], strict=True)
        if layer.created_by.startswith("wheels: big")
    }
    assert dependency < set(layer_keys(first))
    assert (
        tree(second.image)["opt/tiny/venv/lib/python3.11/site-packages/small/__init__.py"]
        == b"VALUE = 'new'\n"
    )


def test_two_builds_of_one_commit_in_one_minute_keep_both(project: Project) -> None:
    project.write("notes", "")
    first = project.build()
    project.write("src/tiny/core/work.py", "VALUE = 2\n")
    second = project.build()
    minute = f"{datetime.now(UTC):%Y%m%d-%H%M}"
    if minute not in first.tag:
        pytest.skip("a minute began between the builds")
    assert second.tag == first.tag.replace("-dirty", "-2-dirty")
    assert project.store.tags()[first.tag].digest == first.image.digest


def test_a_tag_of_ones_own_is_immutable(project: Project) -> None:
    assert project.build(tag="v1").tag == "v1"
    assert project.build(tag="v1").tag == "v1"
    project.write("src/tiny/core/work.py", "VALUE = 2\n")
    with pytest.raises(TagTakenError, match="v1"):
        project.build(tag="v1")


def test_an_alias_never_goes_back(project: Project) -> None:
    first = project.git("rev-parse", "HEAD")
    project.write("src/tiny/core/work.py", "VALUE = 2\n")
    project.commit()
    newer = project.build()
    assert newer.alias == "main-latest-local"
    project.git("reset", "--quiet", "--hard", first)
    older = project.build()
    assert older.alias == ""
    assert project.store.tags()["main-latest-local"].digest == newer.image.digest
    project.git("checkout", "--quiet", "-B", "main", newer.plan.commit)
    project.write("src/tiny/core/work.py", "VALUE = 3\n")
    assert project.build().alias == "main-latest-local"


def test_ci_names_its_builds_ci(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    built = project.build()
    assert "-ci-" in built.tag
    assert built.alias == "main-latest"


def test_the_bytecode_folder_is_the_images_own(project: Project) -> None:
    def folder(built: Built) -> str:
        [found] = [e for e in built.image.config["config"]["Env"] if "PYCACHE" in e]
        return str(found)

    first = project.build()
    project.write("src/tiny/core/work.py", "VALUE = 2\n")
    second = project.build()
    assert folder(first) != folder(second)
    assert folder(first).startswith("PYTHONPYCACHEPREFIX=/tmp/pycache-")


def test_what_is_wrong_is_said_before_anything_is_made(project: Project) -> None:
    project.write("docker/locks/cpu.txt", lock_line(project.wheels / "big-2.5-py3-none-any.whl"))
    before = sorted(project.store.root.rglob("*"))
    with pytest.raises(LockError, match="small"):
        project.build()
    assert sorted(project.store.root.rglob("*")) == before


def test_no_commit_is_said(tmp_path: Path) -> None:
    project = Project(tmp_path, tmp_path, tmp_path)
    project.git("init", "--quiet")
    with pytest.raises(RepositoryError, match="no commit yet"):
        project.build()


def test_zstd_on_request_gives_other_layers_with_the_same_files(project: Project) -> None:
    first = project.build()
    text = (project.root / "docker/matrix.toml").read_text()
    project.write("docker/matrix.toml", text.replace("[engine]", 'compression = "zstd"\n[engine]'))
    second = project.build()
    assert second.plan.path == "full"
    kinds = {layer.descriptor.media_type for layer in second.image.layers[1:]}
    assert kinds == {"application/vnd.oci.image.layer.v1.tar+zstd"}
    before, after = (contents.read(b.image.layers).files for b in (first, second))
    gone = {p for p in before.keys() ^ after.keys() if "dist-info" not in p}
    assert gone == set(), "only the version differs, since the matrix was edited"


FORK = """
default-variant = "cu130"
[image]
repository = "team/fork"
[engine]
name = "fork"
source = "python/fork"
pyproject = "python/pyproject.toml"
extra = "all"
root = "/workspace/fork/python"
[variants.cu130]
platforms = ["linux/amd64"]
python = "3.12"
glibc = "2.39"
builder = "assemble"
[variants.cu130.base]
reference = "registry.invalid/fork:dev"
python = "/usr/bin/python3"
[variants.cu130.rootfs]
suite = "bookworm"
packages = ["python3"]
python = "/usr/bin/python3"
"""


def test_a_fork_is_released_on_a_base_that_has_its_dependencies(tmp_path: Path) -> None:
    """Only the source is replaced: what the base has beside it, its user and command stay."""
    project = Project(tmp_path / "fork", tmp_path, tmp_path / "cache")
    project.write("docker/matrix.toml", FORK)
    project.write("python/pyproject.toml", '[project]\nname = "fork"\ndependencies = ["torch"]\n')
    project.write("python/fork/__init__.py", "NEW = True\n")
    project.write("python/fork/srt/server.py", "NEW = True\n")
    project.git("init", "--quiet", "--initial-branch", "main")
    project.commit()
    row = matrices.load(project.root).variant("cu130")
    assert row.rootfs is not None

    def fill(writer: LayerWriter) -> None:
        for path in ("fork/old.py", "fork/srt/server.py", "fork.egg-link", "pyproject.toml"):
            writer.add(File(f"workspace/fork/python/{path}", b"of the base"))
        writer.add(File("usr/lib/python3/dist-packages/torch/__init__.py", b""))

    layer = write_layer(project.store, fill, roots=[], key="", created_by="base")
    runtime = {"Env": ["PATH=/usr/bin", "CUDA=13"], "Cmd": ["python3", "-m", "fork"], "User": "0"}
    image = Image({"os": "linux", "architecture": "amd64", "config": runtime}, (layer,))
    origin = rootfs.origin_of(row, row.rootfs)
    base = bases.Base(image.digest, origin, row.rootfs.python, "made for the test", image)
    project.store.write_image(base.noted, [bases.tag(row)])

    built = project.build()
    assert tree(built.image) == {
        "workspace/fork/python/fork/__init__.py": b"NEW = True\n",
        "workspace/fork/python/fork/srt/server.py": b"NEW = True\n",
        "workspace/fork/python/fork.egg-link": b"of the base",
        "workspace/fork/python/pyproject.toml": b"of the base",
        "usr/lib/python3/dist-packages/torch/__init__.py": b"",
    }
    config = built.image.config["config"]
    assert {name: config[name] for name in runtime} == runtime
    assert built.image.labels["org.opencontainers.image.title"] == "fork"
    project.write("python/fork/srt/server.py", "NEW = None\n")
    again = project.build()
    assert again.plan.path == "fast"
    before = {layer.descriptor.digest for layer in built.image.layers}
    moved = [x.created_by for x in again.image.layers if x.descriptor.digest not in before]
    assert moved == ["source fork/srt"]
