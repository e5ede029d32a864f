"""Images are loaded into a real Docker Engine and run; each trap of appended layers is tried."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slipway.build import source
from slipway.build.git import Checkout
from slipway.build.run import Built
from slipway.build.run import build as run_build
from slipway.build.wheels import cache_folder
from slipway.image.archive import write_docker_archive
from slipway.image.layer import LayerWriter, write_layer
from slipway.image.model import Image, append
from support.project import IDENTITY, MATRIX, Project, make_project

REPOSITORY = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.docker, pytest.mark.slow]

Run = Callable[..., str]


@pytest.fixture(scope="module", autouse=True)
def _base_can_be_made() -> None:
    if shutil.which("mmdebstrap") is None and not (cache_folder() / "rootfs/index.json").exists():
        pytest.skip("no base: mmdebstrap is not installed (apt-get install mmdebstrap)")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """The small project on the base of this repository's cpu image."""
    for name, value in IDENTITY.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    made = make_project(tmp_path)
    rootfs = (REPOSITORY / "docker/matrix.toml").read_text()
    rootfs = rootfs[rootfs.index("[variants.cpu.rootfs]") : rootfs.index("\n[variants.cu130]")]
    ours = MATRIX[: MATRIX.index("[variants.cpu.rootfs]")]
    made.write("docker/matrix.toml", ours + rootfs)
    made.commit()
    made.store.untag("base-cpu")
    made.cache = cache_folder()
    return made


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Callable[[Image], str]]:
    """`docker load` of an image; gives its name, and removes it afterwards."""
    names: list[str] = []

    def loaded(image: Image) -> str:
        name = f"slipway-test:{uuid.uuid4().hex[:12]}"
        path = tmp_path / "load.tar"
        write_docker_archive(image, [name], path)
        subprocess.run(["docker", "load", "-q", "-i", path], check=True, capture_output=True)
        names.append(name)
        return name

    yield loaded
    for name in names:
        subprocess.run(["docker", "rmi", "-f", name], check=True, capture_output=True)


def run(image: str, *words: str, options: tuple[str, ...] = ()) -> str:
    """What a container prints; its failure is the test's."""
    command = ["docker", "run", "--rm", "--network=none", *options, image, *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout.strip()


def python(image: str, code: str, *, options: tuple[str, ...] = ()) -> str:
    return run(image, "-c", code, options=("--entrypoint", "python", *options))


def test_the_entrypoint_runs_the_source(project: Project, load: Callable[[Image], str]) -> None:
    image = load(project.build().image)
    assert run(image) == "1"
    assert python(image, "import small, big; print(small.VALUE, big.VALUE)") == "small big"
    version = "import importlib.metadata as m; print(m.version('tiny'), m.version('big'))"
    commit = project.git("rev-parse", "HEAD")
    assert python(image, version) == f"0.1.0.dev0+g{commit[:9]} 2.5"


def test_it_runs_as_nobody_special_on_folders_of_root(
    project: Project, load: Callable[[Image], str]
) -> None:
    image = load(project.build().image)
    code = (
        "import os, json\n"
        "def of(p): s = os.lstat(p); return [s.st_uid, s.st_gid, oct(s.st_mode & 0o7777)]\n"
        "print(json.dumps([[os.getuid(), os.getgid()], of('/opt'), of('/opt/tiny'),"
        " of('/opt/tiny/src/tiny/cli.py'), of('/tmp'), os.access('/opt/tiny', os.W_OK)]))"
    )
    found = json.loads(python(image, code))
    assert found == [
        [10001, 10001],
        [0, 0, "0o755"],
        [0, 0, "0o755"],
        [0, 0, "0o644"],
        [0, 0, "0o1777"],
        False,
    ]


def test_a_base_keeps_the_mode_of_a_folder_above_ours(project: Project, tmp_path: Path) -> None:
    """A layer that declared `opt` would level it to 0755 (pipeline.md, traps).

    Docker 20.10 cannot show it: it unpacks each layer apart from those below, and gives folders
    that the layer does not declare 0755 by itself.
    """
    if shutil.which("umoci") is None or os.geteuid() != 0:
        pytest.skip("needs umoci (apt-get install umoci) and root")

    def fill(writer: LayerWriter) -> None:
        writer._header("opt", tarfile.DIRTYPE, 0o2711)

    built = project.build()
    base = built.plan.base.image
    odd = write_layer(project.store, fill, roots=[], key="", created_by="odd")
    ours = built.image.layers[len(base.layers) :]
    project.store.write_image(Image(built.image.config, (*base.layers, odd, *ours)), ["odd"])
    bundle = tmp_path / "bundle"
    command = ["umoci", "unpack", "--image", f"{project.store.root}:odd", str(bundle)]
    subprocess.run(command, check=True, capture_output=True)
    assert oct((bundle / "rootfs/opt").stat().st_mode & 0o7777) == "0o2711"
    assert oct((bundle / "rootfs/opt/tiny").stat().st_mode & 0o7777) == "0o755"


def test_a_deleted_file_does_not_live_on_in_a_lower_layer(
    project: Project, load: Callable[[Image], str]
) -> None:
    """The old source lies in the base, as with an engine that is released on a prebuilt image."""
    project.write("src/tiny/core/old.py", "")
    project.write("src/tiny/gone/__init__.py", "")
    before = project.build()
    shutil.rmtree(project.root / "src/tiny/gone")
    (project.root / "src/tiny/core/old.py").unlink()
    engine = before.plan.engine
    metadata = source.dist_info(engine, "tiny", "2.0", {})
    with Checkout(project.root).snapshot(engine.source) as (checkout, tree):
        layers = source.layers(checkout, tree, engine, metadata, project.store, {}.get)
    image = load(append(before.image, layers))
    code = "import pathlib; print(sorted(str(p) for p in pathlib.Path('/opt/tiny/src').rglob('*')))"
    found = python(image, code)
    assert "old.py" not in found
    assert "gone" not in found
    assert "tiny-2.0.dist-info" in found
    assert "0.1.0" not in found, "the metadata of the version before lives on"
    assert run(image) == "1"


def test_a_same_size_edit_runs_the_new_code(
    project: Project, load: Callable[[Image], str], tmp_path: Path
) -> None:
    """Both containers share a /tmp, where the first one leaves its .pyc."""
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o777)
    shared.chmod(0o777)
    options = ("-v", f"{shared}:/tmp")
    first = load(project.build().image)
    assert run(first, options=options) == "1"
    assert list(shared.rglob("work.*.pyc")), "nothing was compiled: the trap is not laid"
    project.write("src/tiny/core/work.py", "VALUE = 2\n")
    second = load(project.build().image)
    assert run(second, options=options) == "2"


def test_no_bytecode_travels(project: Project, load: Callable[[Image], str]) -> None:
    image = load(project.build().image)
    code = "import pathlib; print([*pathlib.Path('/opt').rglob('*.pyc')])"
    assert python(image, code) == "[]"


@pytest.mark.parametrize("tool", ["skopeo", "buildah", "umoci"])
def test_other_tools_read_the_store(project: Project, tool: str, tmp_path: Path) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed (apt-get install {tool})")
    built = project.build()
    layout = f"{project.store.root}:{built.tag}"

    def said(*words: str) -> str:
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    if tool == "skopeo":
        found = json.loads(said("skopeo", "inspect", f"oci:{layout}"))
        assert found["Digest"] == built.image.digest
        assert len(found["Layers"]) == len(built.image.layers)
        assert found["Labels"]["org.slipway.commit"] == built.plan.commit
    elif tool == "umoci":
        if os.geteuid() != 0:
            pytest.skip("umoci unpacks owners only as root")
        said("umoci", "unpack", "--image", layout, str(tmp_path / "bundle"))
        assert (tmp_path / "bundle/rootfs/opt/tiny/src/tiny/cli.py").exists()
    else:
        name = said("buildah", "from", f"oci:{layout}").strip()
        try:
            config = json.loads(said("buildah", "inspect", name))
            assert config["OCIv1"]["config"]["Entrypoint"] == ["tiny"]
        finally:
            image = json.loads(said("buildah", "inspect", name))["FromImageID"]
            said("buildah", "rm", name)
            said("buildah", "rmi", "--force", image)


@pytest.fixture(scope="module")
def cpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Built, str]]:
    """The cpu image of this repository's HEAD, loaded; and its name."""
    folder = tmp_path_factory.mktemp("cpu")
    clone = folder / "clone"
    subprocess.run(["git", "clone", "--quiet", str(REPOSITORY), str(clone)], check=True)
    built = run_build(clone, "cpu", None, cache_folder(), say=lambda _: None)
    name = f"slipway-test:{uuid.uuid4().hex[:12]}"
    write_docker_archive(built.image, [name], folder / "load.tar")
    command = ["docker", "load", "-q", "-i", str(folder / "load.tar")]
    subprocess.run(command, check=True, capture_output=True)
    yield built, name
    subprocess.run(["docker", "rmi", "-f", name], check=True, capture_output=True)


def test_the_cpu_image_computes_with_torch_and_carries_no_cuda(cpu: tuple[Built, str]) -> None:
    built, name = cpu
    code = (
        "import torch, keel, json, importlib.metadata as m\n"
        "x = torch.arange(6.).reshape(2, 3)\n"
        "names = sorted(d.metadata['Name'].lower() for d in m.distributions())\n"
        "print(json.dumps([(x @ x.T).tolist(), torch.__version__, torch.version.cuda, names]))"
    )
    product, version, cuda, names = json.loads(python(name, code).splitlines()[-1])
    assert product == [[5.0, 14.0], [14.0, 50.0]]
    assert version.endswith("+cpu")
    assert cuda is None
    assert not [n for n in names if n.startswith("nvidia") or n == "triton"]
    assert sorted({*built.plan.lock.pins, "slipway"}) == sorted(n.replace("_", "-") for n in names)


def test_the_cpu_image_says_its_version(cpu: tuple[Built, str]) -> None:
    built, name = cpu
    assert run(name, "--version") == f"keel {built.plan.version.text}"
