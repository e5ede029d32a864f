"""Lock files: what pip-compile wrote, read back and held against `pyproject.toml`."""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipway.build.matrix import Engine, Variant
from slipway.errors import ConfigError, LockError

if TYPE_CHECKING:
    from packaging.requirements import Requirement

_NORMALISE = re.compile(r"[-_.]+")
_HASH = re.compile(r"--hash=(sha256:[0-9a-f]{64})")


def normalise(name: str) -> str:
    """A project's name in its one spelling (PEP 503)."""
    return _NORMALISE.sub("-", name).lower()


@dataclass(frozen=True)
class Pin:
    """One locked package: name, version, and the hashes that its file may have."""

    name: str
    version: str
    hashes: tuple[str, ...]


@dataclass(frozen=True)
class Lock:
    """A lock file for one variant; `pins` by normalised name, those of other platforms left out."""

    path: Path
    pins: Mapping[str, Pin]


def target_environment(variant: Variant) -> dict[str, str]:
    """The markers' values (PEP 508) on the variant's platform, whatever this machine is."""
    machine = {"amd64": "x86_64", "arm64": "aarch64"}[variant.platform.architecture]
    return {
        "implementation_name": "cpython",
        "implementation_version": f"{variant.python}.0",
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": f"{variant.python}.0",
        "python_version": variant.python,
        "sys_platform": "linux",
        "extra": "",
    }


def read_project(path: Path) -> dict[str, Any]:
    """`pyproject.toml` as a table.

    Raises:
        LockError: it is missing or no TOML.
    """
    try:
        return tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise LockError(f"{path} cannot be read: {error}") from error


def requirements(project: Mapping[str, Any], extra: str) -> list[str]:
    """What must be installed in the image: the project's dependencies and those of `extra`."""
    table = project.get("project", {})
    return [*table.get("dependencies", []), *table.get("optional-dependencies", {}).get(extra, [])]


def load(root: Path, variant: Variant) -> Lock:
    """Read a variant's lock file; an empty lock where its base has the dependencies.

    Raises:
        LockError: it is missing, or an entry is not pinned to one version with a hash.
    """
    if variant.lock is None:
        return Lock(Path(), {})
    path = root / variant.lock
    remedy = f"slipway image lock {variant.name}"
    try:
        text = path.read_text()
    except FileNotFoundError as error:
        raise LockError(f"there is no lock file {variant.lock}", remedy) from error
    environment = target_environment(variant)
    pins = {}
    for line in text.replace("\\\n", " ").splitlines():
        entry = line.split(" #")[0].strip()
        if not entry or entry.startswith(("#", "--")):
            continue
        spec, *_ = entry.split("--hash")
        requirement, _, marker = spec.partition(";")
        name, pinned, version = requirement.strip().partition("==")
        hashes = tuple(_HASH.findall(entry))
        if not pinned or not hashes:
            raise LockError(
                f"{variant.lock}: {requirement.strip()!r} is not pinned with == and a hash", remedy
            )
        if marker and not _applies(marker.strip(), environment):
            continue
        bare = normalise(name.partition("[")[0].strip())
        pins[bare] = Pin(bare, version.strip(), hashes)
    return Lock(variant.lock, pins)


def _applies(marker: str, environment: dict[str, str]) -> bool:
    from packaging.markers import Marker

    return Marker(marker).evaluate(environment)


def check_once(
    root: Path,
    lock: Lock,
    project: Mapping[str, Any],
    engine: Engine,
    variant: Variant,
    cache: Path,
) -> None:
    """`check`, unless these very files passed it before on this machine.

    To judge requirements takes a library whose import alone costs a tenth of a fast build.
    """
    if variant.lock is None:
        return
    files = (root / engine.pyproject, root / lock.path, root / "docker/matrix.toml")
    judged = hashlib.sha256(f"1 {variant.name}".encode())
    for path in files:
        judged.update(hashlib.sha256(path.read_bytes()).digest())
    passed = cache / "locks" / judged.hexdigest()
    if passed.exists():
        return
    check(lock, project, engine, variant)
    with suppress(OSError):  # a cache that cannot be written only costs time
        passed.parent.mkdir(parents=True, exist_ok=True)
        passed.touch()


def check(lock: Lock, project: Mapping[str, Any], engine: Engine, variant: Variant) -> None:
    """Hold a lock against the project.

    Raises:
        LockError: a requirement is not locked, or locked outside its range or the variant's
            constraints, or a package is locked that the variant forbids.
        ConfigError: a requirement or constraint cannot be read.
    """
    if variant.lock is None:
        return
    remedy = f"slipway image lock {variant.name}"
    environment = target_environment(variant)
    for text in requirements(project, engine.extra):
        requirement = parse_requirement(text, engine.pyproject)
        if requirement.marker and not requirement.marker.evaluate(environment):
            continue
        if normalise(requirement.name) in variant.provided:
            continue
        pin = lock.pins.get(normalise(requirement.name))
        if pin is None:
            raise LockError(f"{lock.path} does not lock {text!r} of {engine.pyproject}", remedy)
        if not requirement.specifier.contains(pin.version, prereleases=True):
            raise LockError(
                f"{lock.path} locks {pin.name}=={pin.version}, but {engine.pyproject} asks for "
                f"{text!r}",
                remedy,
            )
    for text in variant.constraints:
        constraint = parse_requirement(text, "docker/matrix.toml")
        pin = lock.pins.get(normalise(constraint.name))
        if pin is not None and not constraint.specifier.contains(pin.version, prereleases=True):
            raise LockError(
                f"{lock.path} locks {pin.name}=={pin.version}, but the variant {variant.name} is "
                f"constrained to {text}",
                f"{remedy}, with pip configured to find that build "
                "(PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS)",
            )
    for name in lock.pins:
        if name in variant.provided:
            raise LockError(
                f"{lock.path} locks {name}, which the base of {variant.name} has: its own would "
                "be hidden",
                remedy,
            )
        if any(fnmatchcase(name, pattern) for pattern in variant.forbidden):
            raise LockError(
                f"{lock.path} locks {name}, which the variant {variant.name} forbids", remedy
            )


def parse_requirement(text: str, where: object) -> Requirement:
    """A requirement (PEP 508).

    Raises:
        ConfigError: it is none; the message says where it stands.
    """
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        return Requirement(text)
    except InvalidRequirement as error:
        raise ConfigError(f"{where}: {text!r} is not a requirement ({error})") from error
