"""The builders agree: Dockerfiles through BuildKit and buildah give what assemble gives."""

from __future__ import annotations

import functools
import http.server
import json
import os
import shutil
import subprocess
import tarfile
import threading
import uuid
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from slipway.build import context, dockerfile, rootfs
from slipway.build import matrix as matrices
from slipway.build.bake import bake_file
from slipway.build.git import find_checkout
from slipway.build.plan import DEPENDENCY_KEY, load_and_decide
from slipway.build.wheels import cache_folder
from slipway.cli.image import command
from slipway.image import contents
from slipway.image.archive import write_docker_archive
from slipway.image.contents import Entry
from slipway.image.layer import File, LayerWriter, Symlink, write_layer
from slipway.image.layout import LayoutStore
from slipway.image.model import Image, append
from slipway.image.serve import serve_layout
from support.archives import read_docker_archive
from support.project import IDENTITY, MATRIX, Project, make_project

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.docker, pytest.mark.slow]


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """The small project with this repository's Dockerfiles, on the base of its cpu image."""
    if shutil.which("mmdebstrap") is None and not (cache_folder() / "rootfs/index.json").exists():
        pytest.skip("no base: mmdebstrap is not installed (apt-get install mmdebstrap)")
    folder = tmp_path_factory.mktemp("builders")
    handler = functools.partial(_Quiet, directory=str(folder / "wheels"))
    server = http.server.ThreadingHTTPServer(("0.0.0.0", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in IDENTITY.items():
            patch.setenv(name, value)
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", f"http://127.0.0.1:{server.server_address[1]}/")
        made = make_project(folder)
        rootfs = (ROOT / "docker/matrix.toml").read_text()
        rootfs = rootfs[rootfs.index("[variants.cpu.rootfs]") :]
        rootfs = rootfs[:end] if (end := rootfs.find("\n[variants.", 1)) > 0 else rootfs
        made.write("docker/matrix.toml", MATRIX[: MATRIX.index("[variants.cpu.rootfs]")] + rootfs)
        for name in ("Dockerfile", "Dockerfile.fast"):
            text = (ROOT / "docker" / name).read_text()
            made.write(
                f"docker/{name}", text.replace('["keel"]', '["tiny"]').replace("keel", "tiny")
            )
        made.write("src/tiny/tool.sh", "#!/bin/sh\nexit 0\n")
        (made.root / "src/tiny/tool.sh").chmod(0o755)
        (made.root / "src/tiny/link").symlink_to("tool.sh")
        made.commit()
        made.store.untag("base-cpu")
        made.cache = cache_folder()
        yield made
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def assembled(project: Project) -> Image:
    return project.build().image


# Files that say who installed, which differ by definition: pip or we.
_INSTALLER = ("/INSTALLER", "/RECORD", "/REQUESTED")


def layout_of(files: Mapping[str, Entry]) -> dict[str, tuple[Any, ...]]:
    """Kind, mode and content of every path of ours; folders of ours have one mode anyway."""
    found: dict[str, tuple[Any, ...]] = {}
    for path, entry in files.items():
        if not path.startswith("opt/tiny") or path.endswith(_INSTALLER):
            continue
        launcher = "/venv/bin/" in path and entry.kind == "f"
        # Only launchers of dependencies are pip's own text, here big-tool's.
        content = "" if launcher and path.endswith("big-tool") else entry.content
        mode = 0o777 if entry.kind == "l" else entry.mode & 0o777
        found[path] = (entry.kind, mode, content)
    return found


def runtime_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """What decides how a container runs, and the labels; the dependency key names the builder."""
    runtime = {
        key: config["config"].get(key)
        for key in ("Env", "Entrypoint", "Cmd", "User", "WorkingDir", "Labels")
    }
    runtime["Labels"] = {k: v for k, v in runtime["Labels"].items() if k != DEPENDENCY_KEY}
    runtime["Env"] = sorted(
        "PYTHONPYCACHEPREFIX=" if entry.startswith("PYTHONPYCACHEPREFIX=/tmp/pycache-") else entry
        for entry in runtime["Env"]
    )
    return {**runtime, "platform": (config["os"], config["architecture"])}


@pytest.mark.parametrize("builder", ["buildx", "buildah"])
def test_a_builder_gives_the_image_that_assemble_gives(
    project: Project, assembled: Image, builder: str
) -> None:
    need(builder)
    built = project.build(builder=builder, full=True)
    assert built.plan.path == "full"
    files = contents.read(built.image.layers).files
    expected = contents.read(assembled.layers).files
    assert layout_of(files) == layout_of(expected)
    assert runtime_of(built.image.config) == runtime_of(assembled.config)
    # Nothing of the build itself is left: what is not ours is the base's, blob for blob.
    assert {p for p in files if not p.startswith("opt")} == {
        p for p in expected if not p.startswith("opt")
    }
    assert built.image.layers[0].descriptor.digest == assembled.layers[0].descriptor.digest
    assert [p.name for layer in built.image.layers[1:] for p in contents.noted_packages(layer) or []
            ] == ["small", "big", "tiny"]  # fmt: skip
    # After that an edit is the fast path, which needs no builder.
    again = project.build(builder=builder)
    assert again.plan.path == "fast"
    assert again.image.digest == built.image.digest


def test_bake_gives_the_image_that_assemble_gives(
    project: Project, assembled: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also `Dockerfile.fast` on top of the deps image, and neither tells where pip looked."""
    need("buildx")
    monkeypatch.chdir(project.root)
    monkeypatch.setenv("SLIPWAY_CACHE", str(project.cache))
    # bake's steps are on Docker's own network, from which this machine has another address.
    template = "{{(index .IPAM.Config 0).Gateway}}"
    gateway = run(["docker", "network", "inspect", "bridge", "--format", template])
    links = os.environ["PIP_FIND_LINKS"].replace("127.0.0.1", gateway)
    monkeypatch.setenv("PIP_FIND_LINKS", links)
    monkeypatch.setenv("PIP_TRUSTED_HOST", gateway)
    done = CliRunner().invoke(command, ["matrix", "--bake"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    bake = json.loads(done.stdout)
    mark = uuid.uuid4().hex[:12]
    base = f"slipway-test:base-{mark}"
    deps = f"slipway-test:deps-{mark}"
    load(tmp_path, project.store, "base-cpu", base)
    load(tmp_path, project.store, next(t for t in project.store.tags() if "deps" in t), deps)
    bake["target"]["cpu"]["args"]["BASE"] = base
    bake["target"]["cpu-fast"]["args"]["DEPS"] = deps
    names = {name: f"slipway-test:{name}-{mark}" for name in ("cpu", "cpu-fast")}
    try:
        for name, tag in names.items():
            bake["target"][name]["tags"] = [tag]
        (tmp_path / "bake.json").write_text(json.dumps(bake))
        words = ["docker", "buildx", "bake", "--load", "-f", str(tmp_path / "bake.json")]
        run([*words, *names])
        expected = layout_of(contents.read(assembled.layers).files)
        for tag in names.values():
            run(["docker", "save", "-o", str(tmp_path / "saved.tar"), tag])
            config, files = read_docker_archive(tmp_path / "saved.tar")
            assert layout_of(files) == expected
            assert runtime_of(config) == runtime_of(assembled.config)
            assert gateway not in json.dumps(config)
            assert run(["docker", "run", "--rm", "--network=none", tag]) == "1"
    finally:
        subprocess.run(["docker", "rmi", "-f", base, deps, *names.values()], capture_output=True)


_GIT = """#!/bin/sh
echo "$(basename "$0") $*" >>/opt/keel/venv/steps.log
[ "$1" = clone ] || exit 0
for folder; do :; done
mkdir -p "$folder/scripts" "$folder/mooncake-wheel/dist"
printf '#!/bin/sh\n' >"$folder/scripts/build_wheel.sh"
chmod +x "$folder/scripts/build_wheel.sh"
: >"$folder/mooncake-wheel/dist/mooncake.whl"
"""
_PIP = """import os, sys
words = [f"{k}={os.environ[k]}" for k in ("GPU_ARCHS", "PREBUILD_KERNELS") if k in os.environ]
words += [f"no-deps={os.environ['PIP_NO_DEPS']}", "pip", *sys.argv[1:]]
open(f"{sys.prefix}/steps.log", "a").write(" ".join(words) + chr(10))
"""
_LOCK = "no-deps=1 pip install --require-hashes --requirement /run/slipway/lock.txt"
_ROCM = "https://github.com/ROCm"
_MOONCAKE = [
    "git clone --recurse-submodules --branch {mooncake}"
    " https://github.com/kvcache-ai/Mooncake.git /src/mooncake",
    "cmake -S /src/mooncake -B /src/mooncake/build -DUSE_HIP=ON",
    "cmake --build /src/mooncake/build --parallel",
    "no-deps=1 pip install /src/mooncake/mooncake-wheel/dist/mooncake.whl",
]
_TRITON = [
    f"git clone --filter=blob:none {_ROCM}/triton.git /src/triton",
    "git -C /src/triton checkout --detach {rocm-triton}",
    "no-deps=1 pip install /src/triton",
]


def _aiter(arch: str) -> list[str]:
    return [
        f"git clone --filter=blob:none {_ROCM}/aiter.git /src/aiter",
        "git -C /src/aiter checkout --detach {aiter}",
        "git -C /src/aiter submodule update --init --recursive",
        f"GPU_ARCHS={arch} PREBUILD_KERNELS=1 no-deps=1 pip install /src/aiter",
    ]


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> LayoutStore:
    """A base with ROCm's place for Python, and git and cmake that only note how they are called."""
    store = LayoutStore(tmp_path_factory.mktemp("stand-in"))
    row = matrices.load(ROOT).variant("cpu")
    assert row.rootfs is not None
    if shutil.which("mmdebstrap") is None and not (cache_folder() / "rootfs/index.json").exists():
        pytest.skip("no base: mmdebstrap is not installed (apt-get install mmdebstrap)")

    def fill(writer: LayerWriter) -> None:
        for python in ("opt/venv/bin/python3", "usr/bin/python3.12"):
            writer.add(Symlink(python, "/usr/bin/python3.11"))
        for tool in ("git", "cmake"):
            writer.add(File(f"usr/local/bin/{tool}", _GIT.encode(), executable=True))

    tools = write_layer(store, fill, roots=["opt/venv"], key="", created_by="stand-in")
    image = append(rootfs.make(store, row, row.rootfs, cache_folder()), [tools])
    store.write_image(image, ["stand-in"])
    return store


@pytest.mark.parametrize(
    ("builder", "name", "steps"),
    [
        ("buildx", "rocm720-mi30x", [_LOCK, *_TRITON, *_aiter("gfx942"), *_MOONCAKE]),
        ("buildx", "rocm700-mi35x", [_LOCK, *_aiter("gfx950"), *_MOONCAKE]),
        (
            "buildah",
            "rocm1000-mi35x",
            ["no-deps=0 pip install torch==2.11.*", _LOCK, *_aiter("gfx950"), *_MOONCAKE],
        ),
    ],
)
def test_the_steps_of_a_rocm_image_run_on_a_stand_in_base(
    stand_in: LayoutStore, tmp_path: Path, builder: str, name: str, steps: list[str]
) -> None:
    need(builder)
    matrix = matrices.load(ROOT)
    plan = load_and_decide(find_checkout(ROOT), name, stand_in, tmp_path, unbuilt=True)
    folder = tmp_path / "context"
    folder.mkdir()
    context.write_dependencies(plan, tmp_path, folder)
    with zipfile.ZipFile(folder / "pip.zip", "w") as archive:
        archive.writestr("pip/__main__.py", _PIP)
    secret = tmp_path / "pip.conf"
    secret.write_text("[global]\n")
    with serve_layout(stand_in.root) as host:
        arguments = context.arguments(plan, f"{host}/stand-in:stand-in")
        dockerfile.run(builder, folder, secret, arguments, tmp_path / "layer.tar")
    with tarfile.open(tmp_path / "layer.tar") as tar:
        log = tar.extractfile("opt/keel/venv/steps.log")
        assert log is not None
        pins = {f"{{{key}}}": value for key, value in matrix.pins.items()}
        for key, value in pins.items():
            steps = [step.replace(key, value) for step in steps]
        assert log.read().decode().splitlines() == steps


def test_bake_reads_the_whole_matrix(tmp_path: Path) -> None:
    """`bake --print` of the file that the repository's own matrix gives, every row of it."""
    need("buildx")
    checkout = tmp_path / "checkout"
    subprocess.run(["git", "clone", "-q", "--depth=1", f"file://{ROOT}", checkout], check=True)
    shutil.copytree(ROOT / "docker", checkout / "docker", dirs_exist_ok=True)
    plans = [
        load_and_decide(
            find_checkout(checkout), name, LayoutStore(tmp_path / "s"), cache_folder(), unbuilt=True
        )
        for name in matrices.load(checkout).variants
    ]
    bake = bake_file(find_checkout(checkout), plans, cache_folder())
    (tmp_path / "bake.json").write_text(json.dumps(bake))
    done = subprocess.run(
        ["docker", "buildx", "bake", "--print", "-f", str(tmp_path / "bake.json")],
        cwd=checkout,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)["target"]
    assert list(printed) == sorted(matrices.load(checkout).variants)
    args = printed["rocm720-mi30x"]["args"]
    assert args["GPU_ARCH"] == "gfx942"
    assert args["AITER_COMMIT"] == matrices.load(checkout).pins["aiter"]


def need(builder: str) -> None:
    command = ["docker", "buildx", "version"] if builder == "buildx" else ["buildah", "--version"]
    if shutil.which(command[0]) is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip(f"{builder} is not installed")


def load(folder: Path, store: LayoutStore, tag: str, name: str) -> None:
    image = store.read_image(tag)
    assert image is not None
    write_docker_archive(image, [name], folder / "load.tar")
    run(["docker", "load", "-q", "-i", str(folder / "load.tar")])


def run(words: list[str]) -> str:
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout.strip()
