"""One source file edited, until the tag can be pulled: this builder against Docker's.

    python bench/image_edit.py [--runs 5] [--cold-runs 2] [--base-mb 2000] [--json FILE]

A base of `--base-mb` that does not compress lies in a docker-registry on loopback; the source is
3,000 files and 30 MB in 20 packages. Each run edits one file. Both sides are whole processes:
`slipway image build --push` against `docker buildx build` of a Dockerfile that copies the source
and runs a trivial step, and `docker push`. The clock stops when HEAD on the tag answers 200.

Warm: the daemon has base and cache, our store has the deps image. Cold: neither side has seen
anything (a new base for every run; a new clone with an empty store and cache).
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from slipway.build import matrix as matrices  # noqa: E402
from slipway.build import rootfs  # noqa: E402
from slipway.build.wheels import cache_folder  # noqa: E402
from slipway.image.layer import LayerWriter, write_layer  # noqa: E402
from slipway.image.layout import LayoutStore  # noqa: E402
from slipway.image.model import append  # noqa: E402
from slipway.image.registry import Registry, push_image  # noqa: E402
from support.docker_registry import docker_registry  # noqa: E402
from support.project import IDENTITY, MATRIX, Project, make_project  # noqa: E402

PACKAGES, FILES, FILE_BYTES = 20, 150, 10_000
EDITED = "src/tiny/p07/f000.py"
DOCKERFILE = "FROM {base}\nCOPY src/tiny /opt/tiny/src/tiny\nRUN true\n"


class Noise:
    """`size` bytes that do not compress, without holding them."""

    def __init__(self, size: int) -> None:
        self._left = size

    def read(self, size: int = -1) -> bytes:
        data = os.urandom(min(size, self._left))
        self._left -= len(data)
        return data


def push_base(scratch: Path, host: str, name: str, megabytes: int) -> str:
    """Push a base of three incompressible layers on the real rootfs; gives its reference."""
    store = LayoutStore(scratch / "bases")
    row = matrices.load(ROOT).variant("cpu")
    assert row.rootfs is not None
    image = rootfs.make(store, row, row.rootfs, cache_folder())
    for number in range(3):
        size = megabytes * 1_000_000 // 3

        def fill(writer: LayerWriter, size: int = size, number: int = number) -> None:
            writer.file(f"opt/base/{number}", Noise(size), size)  # type: ignore[arg-type]

        image = append(image, [write_layer(store, fill, roots=[], key="", created_by="noise")])
    push_image(image, Registry(host).repository(f"bench/{name}"), ["1"])
    for layer in image.layers[1:]:
        store.blob_path(layer.descriptor.digest).unlink()
    return f"{host}/bench/{name}:1"


def fill_source(project: Project) -> None:
    """Write 3,000 files of Python that compress as source does."""
    words = [hashlib.sha256(str(n).encode()).hexdigest()[:9] for n in range(4000)]
    rng = random.Random(1)
    for package in range(PACKAGES):
        for number in range(FILES):
            lines: list[str] = []
            size = 0
            while size < FILE_BYTES:
                line = f"{rng.choice(words)} = {rng.choice(words)!r} + str({rng.randrange(10**6)})"
                lines.append(line)
                size += len(line) + 1
            project.write(f"src/tiny/p{package:02}/f{number:03}.py", "\n".join(lines) + "\n")


def edit(project: Project, number: int) -> None:
    path = project.root / EDITED
    path.write_text(path.read_text() + f"# edit {number}\n")
    project.commit(f"edit {number}")


def until_there(host: str, repository: str, tag: str) -> None:
    """Return once the tag answers; fail where it does not at once."""
    connection = http.client.HTTPConnection(host)
    accept = {"Accept": "application/vnd.oci.image.manifest.v1+json, "
              "application/vnd.docker.distribution.manifest.v2+json, "
              "application/vnd.oci.image.index.v1+json"}  # fmt: skip
    connection.request("HEAD", f"/v2/{repository}/manifests/{tag}", headers=accept)
    status = connection.getresponse().status
    if status != 200:
        sys.exit(f"{host}/{repository}:{tag} answers {status}")


def timed(work: Callable[[], None]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def kept_bytecode() -> dict[str, str]:
    """An environment in which Python keeps what it compiled, as where a tool is installed."""
    place = Path(tempfile.gettempdir(), f"slipway-bench-pycache-{os.getuid()}")
    return {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(place)}


def ours(project: Project, host: str, repository: str, tag: str) -> None:
    env = {**os.environ, **IDENTITY, **kept_bytecode(), "PIP_NO_INDEX": "1"}
    env["PYTHONPATH"] = str(ROOT / "src")
    env |= {"PIP_FIND_LINKS": str(project.wheels), "SLIPWAY_CACHE": str(project.cache)}
    command = [sys.executable, "-m", "slipway", "image", "build", tag, "--push"]
    command += ["--registry", host, "--repo", repository, "--json"]
    done = subprocess.run(command, cwd=project.root, env=env, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    until_there(host, repository, tag)


def theirs(project: Project, host: str, repository: str, tag: str, base: str) -> None:
    name = f"{host}/{repository}:{tag}"
    build = [
        "docker",
        "buildx",
        "build",
        "--quiet",
        "--provenance=false",
        "-t",
        name,
        "-f",
        "-",
        ".",
    ]
    for words, given in (
        (build, DOCKERFILE.format(base=base)),
        (["docker", "push", "-q", name], ""),
    ):
        done = subprocess.run(words, cwd=project.root, input=given, capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
    until_there(host, repository, tag)


def clone(project: Project, scratch: Path, name: str) -> Project:
    """A runner that has seen nothing."""
    fresh = Project(scratch / name / "checkout", project.wheels, scratch / name / "cache")
    subprocess.run(["git", "clone", "-q", str(project.root), str(fresh.root)], check=True)
    return fresh


def lock_base(project: Project, base: str) -> None:
    """Let the project stand on `base`, pinned."""
    project.write("docker/matrix.toml", MATRIX.replace("registry.invalid/python:3.11", base))
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "SLIPWAY_CACHE": str(project.cache)}
    command = [sys.executable, "-m", "slipway", "image", "base", "--update"]
    subprocess.run(command, cwd=project.root, env=env, check=True, capture_output=True)
    project.commit("base")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--cold-runs", type=int, default=2)
    parser.add_argument("--base-mb", type=int, default=2000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    os.environ |= IDENTITY
    rows: dict[str, list[float]] = {}
    made: list[str] = []
    with (
        tempfile.TemporaryDirectory(prefix="slipway-bench-", dir="/var/tmp") as name,
        docker_registry(Path(name, "registry")) as host,
    ):
        scratch = Path(name)
        project = make_project(scratch)
        fill_source(project)
        project.commit("source")
        base = push_base(scratch, host, "warm", options.base_mb)
        lock_base(project, base)
        try:
            ours(project, host, "bench/ours", "first")
            theirs(project, host, "bench/theirs", "first", base)
            for number in range(options.runs):
                edit(project, number)
                a = timed(lambda n=number: ours(project, host, "bench/ours", f"w{n}"))  # type: ignore[misc]
                b = timed(lambda n=number: theirs(project, host, "bench/theirs", f"w{n}", base))  # type: ignore[misc]
                c = timed(lambda n=number: ours(project, host, "bench/ours", f"same{n}"))  # type: ignore[misc]
                rows.setdefault("warm, slipway", []).append(a)
                rows.setdefault("warm, docker buildx + push", []).append(b)
                rows.setdefault("nothing changed, slipway", []).append(c)
            for number in range(options.cold_runs):
                edit(project, 100 + number)
                fresh = clone(project, scratch, f"runner{number}")
                a = timed(lambda f=fresh, n=number: ours(f, host, "bench/ours", f"c{n}"))  # type: ignore[misc]
                cold = push_base(scratch, host, f"cold{number}", options.base_mb)
                made.append(cold)
                b = timed(
                    lambda n=number, base=cold: theirs(project, host, "bench/theirs", f"c{n}", base)
                )  # type: ignore[misc]
                rows.setdefault("fresh runner, slipway", []).append(a)
                rows.setdefault("fresh runner, docker buildx + push", []).append(b)
        finally:
            tags = ["first", *(f"w{n}" for n in range(options.runs))]
            tags += [f"c{n}" for n in range(options.cold_runs)]
            names = [f"{host}/bench/theirs:{tag}" for tag in tags]
            subprocess.run(["docker", "rmi", "-f", *names, base, *made], capture_output=True)
    for row, samples in rows.items():
        print(f"{row:<36} {statistics.median(samples):8.3f} s  {[round(s, 3) for s in samples]}")
    for label, one, other in (
        ("warm", "warm, docker buildx + push", "warm, slipway"),
        ("fresh runner", "fresh runner, docker buildx + push", "fresh runner, slipway"),
    ):
        if one in rows:
            ratio = statistics.median(rows[one]) / statistics.median(rows[other])
            print(f"{label:<36} {ratio:8.1f} x")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
