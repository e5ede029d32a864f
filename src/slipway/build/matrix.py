"""`docker/matrix.toml`: the engine that is released and the variants of its image."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from slipway.errors import ConfigError, UsageError
from slipway.image.descriptor import Platform
from slipway.image.reference import Reference
from slipway.image.reference import parse as parse_reference

PATH = Path("docker/matrix.toml")

# How a row refers to a pin.
_PIN = re.compile(r"\{([a-z0-9][a-z0-9._-]*)\}")
# Those that pip has wheel tags of (`wheels.platform_tags`).
_ARCHITECTURES = ("amd64", "arm64")


@dataclass(frozen=True)
class Engine:
    """The source tree that is released, and where it lies in the image.

    Without a `venv` the base has the engine's dependencies already, and only the source is
    replaced: user, environment and, without an `entrypoint`, what runs stay the base's.
    """

    name: str
    source: str
    pyproject: str
    extra: str
    root: str
    venv: str
    entrypoint: tuple[str, ...]

    @property
    def package(self) -> str:
        """The top-level package, as it is imported."""
        return self.source.rstrip("/").rpartition("/")[2]

    @property
    def owned(self) -> str:
        """The folder whose content is ours alone, without the leading slash.

        On a base that has the engine already, that is the package: what lies beside it stays.
        """
        return self.root.lstrip("/") if self.venv else f"{self.root.lstrip('/')}/{self.package}"


@dataclass(frozen=True)
class RegistryBase:
    """A base that a registry has; `python` is its interpreter's path."""

    reference: Reference
    python: str


@dataclass(frozen=True)
class Rootfs:
    """A base that mmdebstrap makes of a Debian suite and packages."""

    suite: str
    packages: tuple[str, ...]
    python: str


@dataclass(frozen=True)
class Profile:
    """Mirrors of a network: a registry to take bases from, an index to take packages from.

    "" is the source itself. Neither is ever part of an image or of its key.
    """

    registry: str
    index: str


@dataclass(frozen=True)
class Variant:
    """One image of the matrix: a row, for one platform.

    Attributes:
        name: the row's for its first platform, `<row>-<architecture>` for each further one.
        row: what a release calls it, whatever the platform.
        provided: packages that the base has, which are therefore never locked.
        args: build arguments of its Dockerfile.
        env: variables of the image; a Dockerfile gets them as build arguments too.
        ci: whether a push builds it.
    """

    name: str
    row: str
    platform: Platform
    python: str
    glibc: str
    builder: str
    lock: Path | None
    constraints: tuple[str, ...]
    forbidden: tuple[str, ...]
    own_layer: tuple[str, ...]
    base: RegistryBase
    rootfs: Rootfs | None
    dockerfile: Path = Path("docker/Dockerfile")
    provided: tuple[str, ...] = ()
    args: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    ci: bool = True


@dataclass(frozen=True)
class Matrix:
    """The whole file.

    Attributes:
        pins: versions that several rows share, by name; rows refer to one as `{name}`.
        profiles: mirrors by name: where bases and packages come from on a network.
    """

    repository: str
    trunk: str
    compression: str
    default_variant: str
    engine: Engine
    variants: Mapping[str, Variant]
    pins: Mapping[str, str] = field(default_factory=dict)
    profiles: Mapping[str, Profile] = field(default_factory=dict)

    @property
    def in_ci(self) -> list[str]:
        """The variants that a push builds."""
        return [name for name, variant in self.variants.items() if variant.ci]

    def variant(self, name: str) -> Variant:
        """A row by its name.

        Raises:
            UsageError: there is none; the message lists those that are there.
        """
        try:
            return self.variants[name]
        except KeyError as error:
            raise UsageError(
                f"there is no variant {name!r}",
                f"the variants of {PATH} are: {', '.join(self.variants)}",
            ) from error

    @property
    def rows(self) -> Mapping[str, tuple[Variant, ...]]:
        """The variants of each row, one a platform, in the file's order."""
        rows: dict[str, tuple[Variant, ...]] = {}
        for variant in self.variants.values():
            rows[variant.row] = (*rows.get(variant.row, ()), variant)
        return rows


class _Table:
    """A TOML table whose every read names file, table and key where it fails."""

    def __init__(self, data: Any, where: str) -> None:
        if not isinstance(data, dict):
            raise ConfigError(f"{PATH}: [{where}] is missing or not a table")
        self._data, self._where, self._read = data, where, set[str]()

    def get(self, key: str, kind: type, default: Any = None) -> Any:
        self._read.add(key)
        value = self._data.get(key, default)
        if not isinstance(value, kind):
            raise ConfigError(
                f"{PATH}: [{self._where}] {key} is {value!r}, which is not a {kind.__name__}"
            )
        return value

    def strings(self, key: str, default: list[str] | None = None) -> tuple[str, ...]:
        values = self.get(key, list, default)
        if not all(isinstance(value, str) for value in values):
            raise ConfigError(f"{PATH}: [{self._where}] {key} is not a list of strings")
        return tuple(values)

    def texts(self, key: str) -> dict[str, str]:
        values: dict[str, str] = self.get(key, dict, {})
        if not all(isinstance(value, str) for value in values.values()):
            raise ConfigError(f"{PATH}: [{self._where}.{key}] holds something that is no string")
        return values

    def done(self) -> None:
        if unknown := sorted(set(self._data) - self._read):
            raise ConfigError(
                f"{PATH}: [{self._where}] has no key {unknown[0]!r}",
                f"it knows: {', '.join(sorted(self._read))}",
            )


def load(root: Path) -> Matrix:
    """Read `docker/matrix.toml` of the repository at `root`.

    Raises:
        ConfigError: it is missing or wrong; the message names table and key.
    """
    try:
        text = (root / PATH).read_text()
    except FileNotFoundError as error:
        raise ConfigError(
            f"there is no {PATH} in {root}", "run this in a checkout of Slipway"
        ) from error
    return parse(text)


def parse(text: str) -> Matrix:
    """The matrix from the file's text.

    Raises:
        ConfigError: it is wrong; the message names table and key.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{PATH}: {error}") from error
    image = _Table(data.get("image"), "image")
    table = _Table(data.get("engine"), "engine")
    engine = Engine(
        name=table.get("name", str),
        source=table.get("source", str),
        pyproject=table.get("pyproject", str),
        extra=table.get("extra", str),
        root=table.get("root", str),
        venv=table.get("venv", str, ""),
        entrypoint=table.strings("entrypoint", []),
    )
    table.done()
    pins = _Table(data, "top").texts("pins")
    variants = _variants(_expanded(data, pins))
    matrix = Matrix(
        repository=image.get("repository", str),
        trunk=image.get("trunk", str, "main"),
        compression=image.get("compression", str, "gzip"),
        default_variant=data.get("default-variant", ""),
        engine=engine,
        variants=variants,
        pins=pins,
        profiles={name: _profile(name, value) for name, value in data.get("profiles", {}).items()},
    )
    image.done()
    if matrix.compression not in ("gzip", "zstd"):
        raise ConfigError(
            f"{PATH}: [image] compression is {matrix.compression!r}", "write gzip or zstd"
        )
    if matrix.default_variant not in variants:
        raise ConfigError(f"{PATH}: default-variant {matrix.default_variant!r} is not a variant")
    for name, variant in variants.items():
        if bool(engine.venv) != bool(variant.lock):
            raise ConfigError(
                f"{PATH}: [engine] venv and [variants.{name}] lock go together",
                "give both, or neither where the base has the dependencies",
            )
    return matrix


def use_profile(matrix: Matrix, name: str) -> None:
    """Take bases and packages from a profile's mirrors, in this process and those it starts.

    What the environment says already stays. Nothing of it gets into an image or a key.

    Raises:
        UsageError: there is no such profile.
    """
    profile = matrix.profiles.get(name)
    if profile is None:
        raise UsageError(
            f"there is no profile {name!r}",
            f"the profiles of {PATH} are: {', '.join(matrix.profiles) or 'none'}",
        )
    if profile.registry:
        os.environ.setdefault("SLIPWAY_BASE_MIRROR", profile.registry)
    if profile.index:
        os.environ.setdefault("PIP_INDEX_URL", profile.index)


def _profile(name: str, data: Any) -> Profile:
    table = _Table(data, f"profiles.{name}")
    profile = Profile(table.get("registry", str, ""), table.get("index", str, ""))
    table.done()
    return profile


def _expanded(data: Mapping[str, Any], pins: Mapping[str, str]) -> dict[str, Any]:
    """The rows with what they inherit from `[families]`, and with pins put in.

    Raises:
        ConfigError: a row refers to a family or a pin that is not there.
    """
    families = data.get("families", {})

    def whole(table: Mapping[str, Any], where: str, above: tuple[str, ...] = ()) -> dict[str, Any]:
        own = dict(table)
        name = own.pop("inherits", "")
        if not name:
            return own
        if name not in families or name in above:
            raise ConfigError(
                f"{PATH}: [{where}] inherits {name!r}, which is "
                f"{'itself' if name in above else 'no family'}",
                f"the families are: {', '.join(families) or 'none'}",
            )
        return _merged(whole(families[name], f"families.{name}", (*above, name)), own)

    return {
        name: _pinned(whole(table, f"variants.{name}"), pins, f"variants.{name}")
        for name, table in data.get("variants", {}).items()
    }


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    both = {**below, **above}
    for key in {*below} & {*above}:
        if isinstance(below[key], dict) and isinstance(above[key], dict):
            both[key] = _merged(below[key], above[key])
    return both


def _pinned(value: Any, pins: Mapping[str, str], where: str) -> Any:
    if isinstance(value, dict):
        return {key: _pinned(item, pins, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list):
        return [_pinned(item, pins, where) for item in value]
    if not isinstance(value, str):
        return value

    def pin(found: re.Match[str]) -> str:
        if found[1] not in pins:
            raise ConfigError(
                f"{PATH}: [{where}] refers to the pin {found[1]!r}, which is not there",
                f"the pins are: {', '.join(pins) or 'none'}",
            )
        return pins[found[1]]

    return _PIN.sub(pin, value)


def _variants(rows: Mapping[str, Any]) -> dict[str, Variant]:
    variants: dict[str, Variant] = {}
    for row, data in rows.items():
        for variant in _row(row, data):
            if variant.name in variants:
                raise ConfigError(
                    f"{PATH}: [variants] has two images of the name {variant.name!r}",
                    "give one of the rows another name",
                )
            variants[variant.name] = variant
    return variants


def _row(name: str, data: Any) -> tuple[Variant, ...]:
    """A row's variants, one for each of its platforms."""
    where = f"variants.{name}"
    table = _Table(data, where)
    base = _Table(table.get("base", dict), f"{where}.base")
    rootfs = None
    if found := table.get("rootfs", dict, {}):
        own = _Table(found, f"{where}.rootfs")
        rootfs = Rootfs(own.get("suite", str), own.strings("packages"), own.get("python", str))
        own.done()
    platforms = _platforms(where, table.strings("platforms"))
    first = Variant(
        name=name,
        row=name,
        platform=platforms[0],
        python=table.get("python", str),
        glibc=table.get("glibc", str),
        builder=table.get("builder", str),
        lock=Path(lock) if (lock := table.get("lock", str, "")) else None,
        constraints=table.strings("constraints", []),
        forbidden=table.strings("forbidden", []),
        own_layer=table.strings("own-layer", []),
        base=RegistryBase(parse_reference(base.get("reference", str)), base.get("python", str)),
        rootfs=rootfs,
        dockerfile=Path(table.get("dockerfile", str, "docker/Dockerfile")),
        provided=table.strings("provided", []),
        args=table.texts("args"),
        env=table.texts("env"),
        ci=table.get("ci", bool, True),
    )
    base.done()
    table.done()
    return first, *(
        replace(first, name=f"{name}-{platform.architecture}", platform=platform)
        for platform in platforms[1:]
    )


def _platforms(where: str, names: tuple[str, ...]) -> tuple[Platform, ...]:
    platforms = tuple(map(Platform.parse, names))
    known = all(
        platform.os == "linux" and platform.architecture in _ARCHITECTURES for platform in platforms
    )
    distinct = len({platform.architecture for platform in platforms}) == len(platforms)
    if not (platforms and known and distinct):
        raise ConfigError(
            f"{PATH}: [{where}] platforms is {list(names)}",
            f"list one or more of {', '.join(f'linux/{name}' for name in _ARCHITECTURES)}, "
            "each architecture once",
        )
    return platforms
