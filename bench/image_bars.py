"""The bars of a push, each a ratio in one run: network, pull, size of the base, full build, help.

    python bench/image_bars.py [--runs 5] [--only edit,network,pull,flat,full,help] [--json FILE]

edit, network: one edited file until the tag answers, against `docker buildx build` + `docker push`;
  directly, and through a relay of 20 ms round trip and 100 Mbit/s.
pull: `docker pull` after the edit where the previous tag is, split by package against one layer.
flat: the same edit on bases of 200 MB and 2 GB, in turn.  full: the cpu image's dependencies and
source from wheels, against reading, compressing and writing the same bytes with as many threads.

Both sides are whole processes. Our modules' bytecode is kept, as it is where the tool is installed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests"), str(ROOT / "bench")]

import image_edit as edits  # noqa: E402
from image_edit import ours, theirs, timed  # noqa: E402
from registry_push import Link  # noqa: E402

from slipway.build.wheels import cache_folder  # noqa: E402
from slipway.image.layer import File, LayerWriter, Packer, write_layer  # noqa: E402
from slipway.image.layout import LayoutStore  # noqa: E402
from slipway.image.model import append  # noqa: E402
from slipway.image.registry import Registry, push_image  # noqa: E402
from support.docker_registry import docker_registry  # noqa: E402
from support.project import IDENTITY, Project, make_project  # noqa: E402

NETWORK = Link(0.020, 100e6 / 8)
Rows = dict[str, list[float]]


class Scene:
    """A registry with a base in it, and the project of 3,000 files on that base."""

    def __init__(self, scratch: Path, host: str, megabytes: int) -> None:
        self.host, self.scratch = host, scratch
        self.name = f"b{megabytes}"
        scratch.mkdir()
        self.project: Project = make_project(scratch)
        edits.fill_source(self.project)
        self.project.commit("source")
        self.base = edits.push_base(scratch, host, self.name, megabytes)
        edits.lock_base(self.project, self.base)
        self.count = 0
        self.build("first")

    def edit(self) -> str:
        self.count += 1
        edits.edit(self.project, self.count)
        return f"t{self.count}"

    def build(self, tag: str, host: str = "") -> float:
        return timed(lambda: ours(self.project, host or self.host, f"bench/{self.name}", tag))

    def docker(self, tag: str, host: str = "") -> float:
        return timed(
            lambda: theirs(self.project, host or self.host, "bench/theirs", tag, self.base)
        )


def edit_and_network(scene: Scene, runs: int, rows: Rows, *, network: bool) -> None:
    scene.docker("first")
    with NETWORK.to(scene.host) as far:
        for _ in range(runs):
            tag = scene.edit()
            rows.setdefault("edit, slipway", []).append(scene.build(tag))
            rows.setdefault("edit, buildx + push", []).append(scene.docker(tag))
            rows.setdefault("nothing changed, slipway", []).append(scene.build(f"{tag}-same"))
            if network:
                tag = scene.edit()
                rows.setdefault("20 ms 100 Mbit/s, slipway", []).append(scene.build(tag, far))
                rows.setdefault("20 ms 100 Mbit/s, buildx + push", []).append(
                    scene.docker(tag, far)
                )


def pull(scene: Scene, runs: int, rows: Rows) -> None:
    store = LayoutStore(scene.project.root / "dist/images")
    repository = Registry(scene.host).repository("bench/one")

    def one(tag: str) -> None:
        """The same files in one source layer."""
        deps = next(t for t in reversed(list(store.tags())) if t.startswith("deps-"))
        image = store.read_image(deps)
        assert image is not None
        there = Registry(scene.host).repository(f"bench/{scene.name}")
        layers = [
            layer if store.has(layer.descriptor.digest) else replace(layer, source=there)
            for layer in image.layers
        ]

        def fill(writer: LayerWriter) -> None:
            source = scene.project.root / "src"
            for path in sorted(source.rglob("*.py")):
                writer.add(File(f"opt/tiny/src/{path.relative_to(source)}", path.read_bytes()))

        made = write_layer(store, fill, roots=["opt/tiny/src"], key="", created_by="source")
        push_image(append(replace(image, layers=tuple(layers)), [made]), repository, [tag])

    def docker_pull(name: str) -> None:
        done = subprocess.run(["docker", "pull", "-q", name], capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)

    pulled = []
    for number in range(runs + 1):
        tag = scene.edit()
        scene.build(tag)
        one(tag)
        for row, name in (("split", f"bench/{scene.name}"), ("one layer", "bench/one")):
            seconds = timed(lambda name=name, tag=tag: docker_pull(f"{scene.host}/{name}:{tag}"))  # type: ignore[misc]
            pulled.append(f"{scene.host}/{name}:{tag}")
            if number:  # the first brings base and dependencies
                rows.setdefault(f"docker pull after an edit, {row}", []).append(seconds)
    subprocess.run(["docker", "rmi", "-f", *pulled], capture_output=True)


def flat(small: Scene, large: Scene, runs: int, rows: Rows) -> None:
    for _ in range(runs):
        for scene in (small, large):
            tag = scene.edit()
            rows.setdefault(f"edit, base {scene.name[1:]} MB", []).append(scene.build(tag))


def full(scratch: Path, runs: int, rows: Rows) -> None:
    env = {**os.environ, **edits.kept_bytecode(), "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "slipway", "image", "build", "--full", "--json", "--store"]
    tars: list[Path] = []
    for number in range(runs):
        folder = scratch / f"full{number}"
        seconds = timed(
            lambda folder=folder: subprocess.run(  # type: ignore[misc]
                [*command, str(folder)], cwd=ROOT, env=env, check=True, capture_output=True
            )
        )
        rows.setdefault("full assemble of cpu", []).append(seconds)
        if not tars:
            tars = unpacked(folder, scratch)
        rows.setdefault("reading, compressing, writing", []).append(
            timed(partial(compress, tars, LayoutStore(scratch / "again")))
        )
        shutil.rmtree(scratch / "again")
        shutil.rmtree(folder)


def unpacked(folder: Path, scratch: Path) -> list[Path]:
    """The layers that the build made, as plain tars."""
    from isal import igzip

    store = LayoutStore(folder)
    image = store.read_image(next(t for t in store.tags() if t.startswith("deps-")))
    assert image is not None
    tars = []
    for number, layer in enumerate(image.layers[1:]):
        tars.append(scratch / f"{number}.tar")
        with igzip.open(store.blob_path(layer.descriptor.digest)) as blob, tars[-1].open("wb") as f:
            shutil.copyfileobj(blob, f, 1 << 20)
    return tars


def compress(tars: list[Path], store: LayoutStore) -> None:
    def one(path: Path) -> None:
        with path.open("rb") as tar, store.writer() as blob:
            packer = Packer(blob)
            while chunk := tar.read(1 << 20):
                packer.write(chunk)
            packer.close()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(one, tars))


def helps(runs: int, rows: Rows) -> None:
    env = {**os.environ, **edits.kept_bytecode(), "PYTHONPATH": str(ROOT / "src")}
    for words in (["--help"], ["image", "plan", "--help"]):
        command = [sys.executable, "-m", "slipway", *words]
        for _ in range(runs):
            rows.setdefault(f"slipway {' '.join(words)}", []).append(
                timed(lambda c=command: subprocess.run(c, env=env, capture_output=True, check=True))  # type: ignore[misc]
            )


RATIOS = (
    ("edit", "edit, buildx + push", "edit, slipway"),
    ("20 ms 100 Mbit/s", "20 ms 100 Mbit/s, buildx + push", "20 ms 100 Mbit/s, slipway"),
    (
        "docker pull after an edit",
        "docker pull after an edit, one layer",
        "docker pull after an edit, split",
    ),
    ("base of 2 GB against 200 MB", "edit, base 2000 MB", "edit, base 200 MB"),
    ("full against its bytes", "full assemble of cpu", "reading, compressing, writing"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--base-mb", type=int, default=2000)
    parser.add_argument("--only", default="edit,network,pull,flat,full,help")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    wanted = set(options.only.split(","))
    os.environ |= IDENTITY
    rows: Rows = {}
    begin = os.getloadavg()[0]
    with (
        tempfile.TemporaryDirectory(prefix="slipway-bench-", dir="/var/tmp") as name,
        docker_registry(Path(name, "registry")) as host,
    ):
        scratch = Path(name)
        steps: list[Callable[[], None]] = []
        if wanted & {"edit", "network", "pull", "flat"}:
            large = Scene(scratch / "large", host, options.base_mb)
            if wanted & {"edit", "network"}:
                far = "network" in wanted
                steps.append(lambda: edit_and_network(large, options.runs, rows, network=far))
            if "pull" in wanted:
                steps.append(lambda: pull(large, options.runs, rows))
            if "flat" in wanted:
                small = Scene(scratch / "small", host, 200)
                steps.append(lambda: flat(small, large, options.runs, rows))
        if "full" in wanted:
            assert (cache_folder() / "wheels").exists(), "make image once, so that wheels are here"
            steps.append(lambda: full(scratch, options.runs, rows))
        if "help" in wanted:
            steps.append(lambda: helps(options.runs, rows))
        try:
            for step in steps:
                step()
        finally:
            listed = ["docker", "images", "--format", "{{.Repository}}:{{.Tag}}"]
            done = subprocess.run(listed, capture_output=True, text=True)
            ports = [line for line in done.stdout.split() if "/bench/" in line]
            subprocess.run(["docker", "rmi", "-f", *ports], capture_output=True)
    for row, samples in rows.items():
        print(f"{row:<40} {statistics.median(samples):8.3f} s  {[round(s, 3) for s in samples]}")
    for label, one, other in RATIOS:
        if one in rows and other in rows:
            ratio = statistics.median(rows[one]) / statistics.median(rows[other])
            print(f"{label:<40} {ratio:8.2f} x")
    print(f"load of the machine: {begin:.1f} before, {os.getloadavg()[0]:.1f} after")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
