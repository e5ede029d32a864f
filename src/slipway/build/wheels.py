"""Wheels of a lock for the target Python and platform, fetched by pip and kept by their sha256.

pip does the fetching with all of its configuration (indexes, find-links, proxies), for the image's
platform and not this machine's. What was fetched once needs no network again.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from slipway.build.lock import Lock, Pin, normalise
from slipway.build.matrix import Variant
from slipway.errors import IntegrityError, LockError, NetworkError, ToolMissingError
from slipway.image.layout import storage_errors
from slipway.image.model import canonical_json, sha256

_PLATFORM = {"amd64": "x86_64", "arm64": "aarch64"}


def cache_folder() -> Path:
    """Where wheels and bases are kept between builds: `SLIPWAY_CACHE`, else `~/.cache/slipway`."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slipway"
    return Path(os.environ.get("SLIPWAY_CACHE") or default)


def platform_tags(variant: Variant) -> list[str]:
    """pip's `--platform` values that the variant's base can run, newest glibc first (PEP 600)."""
    machine = _PLATFORM[variant.platform.architecture]
    newest = int(variant.glibc.split(".")[1])
    tags = [f"manylinux_2_{minor}_{machine}" for minor in range(newest, 16, -1)]
    tags.append(f"manylinux2014_{machine}")
    if machine == "x86_64":
        tags += [f"manylinux_2_{minor}_{machine}" for minor in range(16, 4, -1)]
        tags += [f"manylinux2010_{machine}", f"manylinux1_{machine}"]
    return tags


def fetch(lock: Lock, variant: Variant, cache: Path) -> dict[str, Path]:
    """The wheel of every pin of `lock`, by name; those that the cache lacks come through pip.

    Which of a pin's files fits the variant is pip's choice, made once and kept beside the files: a
    cache that knows another platform's wheels chooses as an empty one does.

    Raises:
        LockError: a pin has no wheel for the variant, only a source distribution or nothing.
        NetworkError: pip could not reach its index.
        IntegrityError: a file is not what the lock says.
    """
    folder = cache / "wheels"
    with storage_errors(folder):
        (folder / "chosen").mkdir(parents=True, exist_ok=True)
        missing = [pin for pin in lock.pins.values() if _cached(folder, pin, variant) is None]
        if missing:
            with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
                _download(missing, variant, Path(scratch))
                _keep(missing, variant, Path(scratch), folder)
    wheels = {}
    for pin in lock.pins.values():
        path = _cached(folder, pin, variant)
        if path is None:
            raise LockError(
                f"pip fetched no wheel for {pin.name}=={pin.version} with a locked hash",
                f"slipway image lock {variant.name}",
            )
        wheels[pin.name] = path
    return wheels


def identity(pin: Pin, variant: Variant) -> str:
    """What decides which wheel is a pin's on the variant's Python and platform, as a digest."""
    decides = [pin.name, pin.version, sorted(pin.hashes), variant.python, platform_tags(variant)]
    return sha256(canonical_json(decides)).removeprefix("sha256:")


def _choice(folder: Path, pin: Pin, variant: Variant) -> Path:
    """The file that notes which wheel pip chose for a pin."""
    return folder / "chosen" / identity(pin, variant)


def _cached(folder: Path, pin: Pin, variant: Variant) -> Path | None:
    """The pin's wheel, where it was fetched before and is still whole."""
    try:
        digest = _choice(folder, pin, variant).read_text().strip()
    except FileNotFoundError:
        return None
    for path in (folder / digest).glob("*.whl"):
        if f"sha256:{digest}" in pin.hashes and _sha256(path) == digest:
            return path
    shutil.rmtree(folder / digest, ignore_errors=True)
    return None


def _keep(pins: Iterable[Pin], variant: Variant, fetched: Path, folder: Path) -> None:
    """Move fetched wheels into the cache: `<sha256>/<name>.whl`, whole or not at all."""
    by_name = {pin.name: pin for pin in pins}
    for wheel in sorted(fetched.glob("*.whl")):
        pin = by_name[normalise(wheel.name.partition("-")[0])]
        digest = _sha256(wheel)
        unit = fetched / digest
        unit.mkdir()
        wheel.rename(unit / wheel.name)
        with suppress(OSError):  # another build was first, with the same bytes
            unit.rename(folder / digest)
        note = fetched / "note"
        note.write_text(digest)
        note.rename(_choice(folder, pin, variant))


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
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}
    )
    if done.returncode:
        raise _explain(done.stderr, variant)


def _explain(said: str, variant: Variant) -> Exception:
    """pip's failure as one of ours (the signs are those of pip 23 to 26)."""
    if "No space left on device" in said:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if "No module named pip" in said:
        return ToolMissingError(
            f"{sys.executable} has no pip, which fetches the wheels", "apt-get install python3-venv"
        )
    if "DO NOT MATCH THE HASHES" in said:
        file = re.search(r"DO NOT MATCH THE HASHES.*\n\s*(\S+)", said)
        return IntegrityError(
            f"{file[1] if file else 'a file'} of the index has another hash than {variant.lock} "
            "says",
            f"if the change is meant: slipway image lock {variant.name}",
        )
    missing = re.search(r"No matching distribution found for (\S+)", said)
    unreachable = re.search(r"after connection broken|Max retries exceeded|HTTP error 5\d\d", said)
    if unreachable or missing is None:
        lines = [line for line in said.splitlines() if line.startswith(("ERROR", "WARNING"))]
        return NetworkError(
            f"pip could not fetch the wheels of {variant.lock} that are not in the cache: "
            f"{(lines or said.strip().splitlines() or ['it said nothing'])[-1]}",
            "connect, or point PIP_INDEX_URL or PIP_FIND_LINKS at where they are",
        )
    return LockError(
        f"{missing[1]} has no wheel for Python {variant.python} on {variant.platform} in "
        "reach, and assemble never builds from a source distribution, which would execute it",
        "lock a version that has a wheel, or give the variant a Dockerfile builder; for a build "
        "like +cpu, name its index with PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS",
    )
