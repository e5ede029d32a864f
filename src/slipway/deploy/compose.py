"""A Compose file as values: ours and foreign ones, as far as the rules of `check` ask.

Follows the Compose specification (interpolation, short and long forms of ports and volumes, lists
and mappings of environment). `extends` and `include` are not followed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slipway.errors import ConfigError

_EXPRESSION = re.compile(
    r"\$(?:(?P<dollar>\$)|(?P<bare>\w+)|"
    r"\{(?P<name>\w+)(?:(?P<operator>:?[-?+])(?P<operand>(?:[^${}]|\$\{[^{}]*\})*))?\})"
)


@dataclass(frozen=True)
class PublishedPort:
    """A host port that leads into a container; `published` is None where Docker picks one."""

    target: int
    published: int | None
    address: str = ""


@dataclass(frozen=True)
class Mount:
    """A volume or folder of the host, and where the container sees it."""

    source: str
    target: str
    read_only: bool


@dataclass(frozen=True)
class ComposeService:
    """One service after interpolation.

    Attributes:
        image: as written, but that variables are replaced.
        image_guarded: the image is a variable that must be set, so it is pinned elsewhere.
        words: entry point (where the file overrides it) and command, split as a shell would.
        line: where the service begins in the file, from 1.
    """

    name: str
    line: int
    image: str
    image_guarded: bool
    words: tuple[str, ...]
    environment: Mapping[str, str]
    ports: tuple[PublishedPort, ...]
    mounts: tuple[Mount, ...]
    network_mode: str
    privileged: bool
    health_test: tuple[str, ...]
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class ComposeFile:
    """A Compose file: its project's name, "" where it has none of its own, and its services."""

    path: Path
    project: str
    services: tuple[ComposeService, ...]


def interpolate(text: str, env: Mapping[str, str]) -> str:
    """`text` with Compose's variables replaced.

    One that must be set and is not becomes `<NAME>`: a file can be read before it is started.
    """

    def replace(match: re.Match[str]) -> str:
        if match["dollar"]:
            return "$"
        name = match["bare"] or match["name"]
        operator, operand = match["operator"] or "", match["operand"] or ""
        value = env.get(name)
        there = bool(value) if operator.startswith(":") else value is not None
        if operator.endswith("+"):
            return interpolate(operand, env) if there else ""
        if there:
            return value or ""
        if operator.endswith("-"):
            return interpolate(operand, env)
        return f"<{name}>" if operator.endswith("?") else ""

    return _EXPRESSION.sub(replace, text)


def variables(text: str) -> dict[str, str | None]:
    """The variables of a Compose file's text, and for one that must be set, what it is for."""
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    found: dict[str, str | None] = {}
    for match in _EXPRESSION.finditer(code):
        if name := match["bare"] or match["name"]:
            must = (match["operator"] or "").endswith("?")
            found[name] = match["operand"] if must else found.get(name)
    return found


def read_compose(path: Path, env: Mapping[str, str] | None = None) -> ComposeFile:
    """Read a Compose file.

    Args:
        path: the file.
        env: values of variables; what the process's environment holds is not looked at.

    Raises:
        ConfigError: the file is missing, is not YAML, or is not shaped as Compose asks.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8: {error}") from None
    return parse_compose(text, path, env or {})


def parse_compose(text: str, path: Path, given: Mapping[str, str]) -> ComposeFile:
    """As `read_compose`, over text that came from `path`."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        document = YAML(typ="rt").load(text)
    except YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    services = document.get("services") if isinstance(document, Mapping) else None
    if not isinstance(services, Mapping) or not services:
        raise ConfigError(f"{path}: no services: a Compose file has a table `services`")
    return ComposeFile(
        path,
        interpolate(str(document.get("name", "")), given),
        tuple(_service(path, name, services, given) for name in services),
    )


def _service(
    path: Path, name: str, services: Mapping[str, Any], env: Mapping[str, str]
) -> ComposeService:
    written = services[name]
    line = services.lc.key(name)[0] + 1 if hasattr(services, "lc") else 0
    if not isinstance(written, Mapping):
        raise ConfigError(f"{path}:{line}: service {name} must be a table, not {written!r}")
    raw = _deep(written, env)

    def wrong(key: str, says: str) -> ConfigError:
        return ConfigError(f"{path}:{line}: service {name}: {key} {says}, not {raw[key]!r}")

    def words(key: str, block: Mapping[str, Any] = raw) -> tuple[str, ...]:
        value = block.get(key)
        if value is None:
            return ()
        if isinstance(value, str):
            try:
                return tuple(shlex.split(value))
            except ValueError as error:
                raise wrong(key, f"cannot be split into words ({error})") from None
        if isinstance(value, list):
            return tuple(map(str, value))
        raise wrong(key, "must be a string or a list")

    health = raw.get("healthcheck") or {}
    if not isinstance(health, Mapping):
        raise wrong("healthcheck", "must be a table")
    try:
        ports = tuple(port for entry in raw.get("ports") or () for port in _ports(entry))
        mounts = tuple(_mount(entry) for entry in raw.get("volumes") or ())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path}:{line}: service {name}: ports or volumes are not Compose's: {error}"
        ) from None
    return ComposeService(
        name=name,
        line=line,
        image=str(raw.get("image", "")),
        image_guarded=bool(re.fullmatch(r"\$\{\w+:\?[^}]*\}", str(written.get("image", "")))),
        words=words("entrypoint") + words("command"),
        environment=_environment(raw.get("environment") or {}),
        ports=ports,
        mounts=mounts,
        network_mode=str(raw.get("network_mode", "")),
        privileged=raw.get("privileged") is True,
        health_test=words("test", health) if "test" in health else (),
        raw=raw,
    )


def _deep(value: Any, env: Mapping[str, str]) -> Any:
    """`value` with every string interpolated and YAML's own containers made plain."""
    if isinstance(value, str):
        return interpolate(value, env)
    if isinstance(value, Mapping):
        return {str(key): _deep(value[key], env) for key in value}
    if isinstance(value, list):
        return [_deep(item, env) for item in value]
    return value


def _environment(value: Mapping[str, Any] | Iterable[str]) -> dict[str, str]:
    if isinstance(value, Mapping):
        return {name: "" if text is None else str(text) for name, text in value.items()}
    pairs = (str(entry).partition("=") for entry in value)
    return {name: text for name, _, text in pairs}


def _ports(entry: Any) -> Iterable[PublishedPort]:
    """Short form `[[address:]published:]target[/protocol]`, ranges included, or the long form."""
    if isinstance(entry, Mapping):
        published = str(entry.get("published") or "")
        address, target = str(entry.get("host_ip", "")), str(entry["target"])
    else:
        head, _, target = str(entry).partition("/")[0].rpartition(":")
        address, _, published = head.rpartition(":")
    targets, hosts = _range(target), _range(published)
    if hosts and len(hosts) != len(targets):
        raise ValueError(f"{entry!r}: the two ranges differ in length")
    return [
        PublishedPort(port, hosts[index] if hosts else None, address.strip("[]"))
        for index, port in enumerate(targets)
    ]


def _range(text: str) -> range:
    """`8000` or `8000-8010`; a variable that is not set yet (`<PORT>`) or "" is empty."""
    if not text or text.startswith("<"):
        return range(0)
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def _mount(entry: Any) -> Mount:
    if isinstance(entry, Mapping):
        return Mount(
            str(entry.get("source", "")), str(entry["target"]), entry.get("read_only") is True
        )
    source, _, rest = str(entry).partition(":")
    target, _, options = rest.partition(":")
    return Mount(source, target or source, "ro" in options.split(","))
