"""Wheels of a lock for the target Python and platform, fetched by pip and kept by their sha256.

pip does the fetching with all of its configuration (indexes, find-links, proxies), for the image's
platform and not this machine's. What was fetched once needs no network again.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from slipway.build.lock import Lock, Pin
from slipway.build.matrix import Variant
from slipway.errors import IntegrityError, LockError, NetworkError
from slipway.image.layout import storage_errors

_PLATFORM = {"amd64": "x86_64", "arm64": "aarch64"}


def cache_folder() -> Path:
    """Where wheels and bases are kept between builds: `SLIPWAY_CACHE`, else `~/.cache/slipway`."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slipway"
    return Path(os.environ.get("SLIPWAY_CACHE") or default)


def platform_tags(variant: Variant) -> list[str]:
    """pip's `--platform` values that the variant's base can run, newest glibc first (PEP 600)."""
    machine = _PLATFORM[variant.platforms[0].architecture]
    newest = int(variant.glibc.split(".")[1])
    tags = [f"manylinux_2_{minor}_{machine}" for minor in range(newest, 16, -1)]
    tags.append(f"manylinux2014_{machine}")
    if machine == "x86_64":
        tags += [f"manylinux_2_{minor}_{machine}" for minor in range(16, 4, -1)]
        tags += [f"manylinux2010_{machine}", f"manylinux1_{machine}"]
    return tags


def fetch(lock: Lock, variant: Variant, cache: Path) -> dict[str, Path]:
    """The wheel of every pin, by name; those that the cache lacks come through pip.

    Raises:
        LockError: a pin has no wheel for the variant, only a source distribution or nothing.
        NetworkError: pip could not reach its index.
    """
    folder = cache / "wheels"
    missing = [pin for pin in lock.pins.values() if _cached(folder, pin) is None]
    if missing:
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
                _download(missing, variant, Path(scratch))
                for wheel in sorted(Path(scratch).glob("*.whl")):
                    kept = folder / _sha256(wheel)
                    if not kept.exists():
                        wheel.rename(Path(scratch, "wheel"))
                        unit = Path(scratch, "unit")
                        unit.mkdir()
                        Path(scratch, "wheel").rename(unit / wheel.name)
                        unit.rename(kept)
    wheels = {}
    for pin in lock.pins.values():
        path = _cached(folder, pin)
        if path is None:
            raise LockError(
                f"pip fetched no wheel for {pin.name}=={pin.version} with a locked hash",
                f"slipway image lock {variant.name}",
            )
        wheels[pin.name] = path
    return wheels


def _cached(folder: Path, pin: Pin) -> Path | None:
    for digest in pin.hashes:
        found = sorted((folder / digest.removeprefix("sha256:")).glob("*.whl"))
        if found:
            return found[0]
    return None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _download(pins: Iterable[Pin], variant: Variant, folder: Path) -> None:
    request = folder / "requirements.txt"
    request.write_text(
        "".join(
            f"{pin.name}=={pin.version} {' '.join(f'--hash={digest}' for digest in pin.hashes)}\n"
            for pin in pins
        )
    )
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", "--require-hashes", "--retries", "2"]
    command += ["--implementation", "cp", "--python-version", variant.python]
    command += [word for tag in platform_tags(variant) for word in ("--platform", tag)]
    command += ["--dest", str(folder), "--requirement", str(request)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 0:
        return
    lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    said = (lines or done.stderr.strip().splitlines() or ["nothing"])[0].removeprefix("ERROR: ")
    if "No space left" in done.stderr:
        raise OSError(28, os.strerror(28), str(folder))
    if "HASH" in said.upper() or "hash" in done.stderr.lower():
        raise IntegrityError(
            f"a file of the index has another hash than {variant.lock} says: {said}",
            f"if the change is meant: slipway image lock {variant.name}",
        )
    offline = ("Failed to establish", "NewConnectionError", "Temporary failure", "Max retries")
    if any(sign in done.stderr for sign in offline):
        raise NetworkError(
            f"pip cannot reach its index, and wheels of {variant.lock} are not in the cache",
            "connect, or point PIP_INDEX_URL / PIP_FIND_LINKS at a mirror",
        )
    raise LockError(
        f"pip found no wheel for {', '.join(map(str, platform_tags(variant)[:1]))}, "
        f"Python {variant.python}: {said}",
        "a package that is only there as source needs a Dockerfile builder; a +cpu build of torch "
        "needs PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS to point at where it lies",
    )
