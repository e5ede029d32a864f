"""`docker/matrix.toml`: the engine that is released and the variants of its image."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slipway.errors import ConfigError, UsageError
from slipway.image.descriptor import Platform
from slipway.image.reference import Reference, parse

PATH = Path("docker/matrix.toml")
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
class Variant:
    """One image of the matrix: a row, for one platform.

    Attributes:
        name: the row's for its first platform, `<row>-<architecture>` for each further one.
        row: what a release calls it, whatever the platform.
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


@dataclass(frozen=True)
class Matrix:
    """The whole file."""

    repository: str
    trunk: str
    compression: str
    default_variant: str
    engine: Engine
    variants: Mapping[str, Variant]

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
    path = root / PATH
    try:
        data = tomllib.loads(path.read_text())
    except FileNotFoundError as error:
        raise ConfigError(
            f"there is no {PATH} in {root}", "run this in a checkout of Slipway"
        ) from error
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
    variants = _variants(data.get("variants", {}))
    matrix = Matrix(
        repository=image.get("repository", str),
        trunk=image.get("trunk", str, "main"),
        compression=image.get("compression", str, "gzip"),
        default_variant=data.get("default-variant", ""),
        engine=engine,
        variants=variants,
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
        base=RegistryBase(parse(base.get("reference", str)), base.get("python", str)),
        rootfs=rootfs,
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
