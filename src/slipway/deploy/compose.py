"""A Compose file as values: ours and foreign ones, as far as the rules of `check` ask.

Follows the Compose specification (interpolation, short and long forms of ports and volumes, lists
and mappings of environment, `extends`, `env_file`). `include` is not followed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from slipway.deploy.document import Comment, Document, parse_document, read_text
from slipway.errors import ConfigError

# Of one file; rules compare services with each other.
MAX_SERVICES, MAX_PORTS = 256, 65_536
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
        container: the container's name, "" where Compose makes one.
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
    container: str = ""
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class ComposeFile:
    """A Compose file: its project's name, "" where it has none of its own, and its services."""

    path: Path
    project: str
    services: tuple[ComposeService, ...]
    comments: tuple[Comment, ...] = ()


def interpolate(text: str, env: Mapping[str, str], *, unknown: bool = False) -> str:
    """`text` with Compose's variables replaced.

    One that must be set and is not becomes `<NAME>`: a file can be read before it is started. With
    `unknown`, so does any other without a value or a default, which Compose takes for empty.
    """

    def replace(match: re.Match[str]) -> str:
        if match["dollar"]:
            return "$"
        name = match["bare"] or match["name"]
        operator, operand = match["operator"] or "", match["operand"] or ""
        value = env.get(name)
        there = bool(value) if operator.startswith(":") else value is not None
        if operator.endswith("+"):
            return interpolate(operand, env, unknown=unknown) if there else ""
        if there:
            return value or ""
        if operator.endswith("-"):
            return interpolate(operand, env, unknown=unknown)
        return f"<{name}>" if operator.endswith("?") or unknown else ""

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


def read_compose(
    path: Path, env: Mapping[str, str] | None = None, *, unknown: bool = False
) -> ComposeFile:
    """Read a Compose file.

    Args:
        path: the file.
        env: values of variables; what the process's environment holds is not looked at.
        unknown: a variable without a value stays `<NAME>` instead of becoming empty.

    Raises:
        ConfigError: the file is missing, is not YAML, or is not shaped as Compose asks.
    """
    return parse_compose(read_text(path), path, env or {}, unknown=unknown)


def parse_compose(
    text: str, path: Path, given: Mapping[str, str], *, unknown: bool = False
) -> ComposeFile:
    """As `read_compose`, over text that came from `path`."""
    document = parse_document(text, path)
    services = _services(document, path)
    read: list[ComposeService] = []
    for name in services:
        written = _extended(path, name, services)
        line = document.lines.get(("services", name), 0)
        if not isinstance(written, dict):
            raise ConfigError(f"{path}:{line}: service {name} must be a table, not {written!r}")
        settled = _deep(written, lambda text: interpolate(text, given, unknown=unknown))
        read.append(_service(path, name, written, settled, line))
        if sum(len(service.ports) for service in read) > MAX_PORTS:
            raise ConfigError(f"{path}: service {name}: more than {MAX_PORTS} ports in one file")
    project = interpolate(str(document.value.get("name") or ""), given, unknown=unknown)
    return ComposeFile(path, project, tuple(read), document.comments)


def _services(document: Document, path: Path) -> dict[str, Any]:
    services = document.value.get("services") if isinstance(document.value, dict) else None
    if not isinstance(services, dict) or not services:
        raise ConfigError(f"{path}: no services: a Compose file has a table `services`")
    if len(services) > MAX_SERVICES:
        raise ConfigError(f"{path}: {len(services)} services: at most {MAX_SERVICES} are judged")
    return services


# Keys whose lists are added up by `extends`; of every other list the extending one stands.
_ADDED = frozenset(("ports", "volumes", "expose", "configs", "secrets", "env_file", "devices"))


def _extended(
    path: Path, name: str, services: Mapping[str, Any], seen: tuple[tuple[Path, str], ...] = ()
) -> Any:
    """A service as written, over what it extends, in this file or another."""
    written = services[name]
    if not isinstance(written, dict) or "extends" not in written:
        return written
    seen = (*seen, (path, name))
    base = written["extends"]
    other = base.get("service") if isinstance(base, dict) else base
    there, where = services, path
    if isinstance(base, dict) and base.get("file"):
        where = path.parent / str(base["file"])
        there = _services(parse_document(read_text(where), where), where)
    if not isinstance(other, str) or other not in there:
        raise ConfigError(f"{path}: service {name} extends {other!r}, which {where} does not have")
    if (where, other) in seen or len(seen) > 8:
        raise ConfigError(f"{path}: service {name} extends itself, by way of {other}")
    return _over(_extended(where, other, there, seen), written)


def _over(below: Any, above: Any) -> Any:
    if not isinstance(below, dict) or not isinstance(above, dict):
        return above
    result = dict(below)
    for key, value in above.items():
        if key == "environment":
            result[key] = {**_environment(below.get(key) or {}), **_environment(value or {})}
        elif key in _ADDED and isinstance(value, list) and isinstance(below.get(key), list):
            result[key] = [*below[key], *value]
        elif key != "extends":
            result[key] = _over(below.get(key), value) if isinstance(value, dict) else value
    result.pop("extends", None)
    return result


def _service(
    path: Path, name: str, written: Mapping[str, Any], raw: Mapping[str, Any], line: int
) -> ComposeService:
    def wrong(key: str, says: str) -> ConfigError:
        return ConfigError(f"{path}:{line}: service {name}: {key} {says}, not {raw.get(key)!r}")

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
            return tuple("" if word is None else _plain(word) for word in value)
        raise wrong(key, "must be a string or a list")

    def table(key: str) -> dict[str, Any]:
        value = raw.get(key) or {}
        if not isinstance(value, dict):
            raise wrong(key, "must be a table")
        return value

    health = table("healthcheck")
    table("deploy")
    environment = raw.get("environment") or {}
    if not isinstance(environment, dict | list):
        raise wrong("environment", "must be a table or a list")
    for key in ("ports", "volumes"):
        if not isinstance(raw.get(key) or [], list):
            raise wrong(key, "must be a list")
    try:
        every = (port for entry in raw.get("ports") or () for port in _ports(entry))
        ports = tuple(islice(every, MAX_PORTS + 1))
        mounts = tuple(_mount(entry) for entry in raw.get("volumes") or ())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path}:{line}: service {name}: ports or volumes are not Compose's: {error}"
        ) from None
    return ComposeService(
        name=name,
        line=line,
        image=str(raw.get("image") or ""),
        image_guarded=bool(re.fullmatch(r"\$\{\w+:\?[^}]*\}", str(written.get("image", "")))),
        words=words("entrypoint") + words("command"),
        environment={**_from_files(path, raw.get("env_file")), **_environment(environment)},
        ports=ports,
        mounts=mounts,
        network_mode=str(raw.get("network_mode") or ""),
        privileged=_plain(raw.get("privileged")).lower() in ("true", "yes", "on", "1"),
        health_test=words("test", health) if "test" in health else (),
        container=str(raw.get("container_name") or ""),
        raw=raw,
    )


def _from_files(path: Path, entries: Any) -> dict[str, str]:
    """Variables of the files that `env_file` names, as far as they are there."""
    from slipway.deploy.settings import read_env

    found: dict[str, str] = {}
    for entry in entries if isinstance(entries, list) else [entries] if entries else []:
        name = entry.get("path") if isinstance(entry, dict) else entry
        if isinstance(name, str) and name:
            try:
                found.update(read_env(read_text(path.parent / name)))
            except ConfigError:
                continue  # Compose says so itself when the file is started
    return found


def _plain(value: Any) -> str:
    """A scalar as YAML has it: true, not True."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _deep(value: Any, settle: Callable[[str], str]) -> Any:
    """`value` with every string settled."""
    if isinstance(value, str):
        return settle(value)
    if isinstance(value, dict):
        return {key: _deep(item, settle) for key, item in value.items()}
    if isinstance(value, list):
        return [_deep(item, settle) for item in value]
    return value


def _environment(value: Mapping[str, Any] | Iterable[str]) -> dict[str, str]:
    if isinstance(value, Mapping):
        return {name: "" if text is None else _plain(text) for name, text in value.items()}
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
    found = range(int(first), int(last or first) + 1)
    if found and (found[0] < 0 or found[-1] > 65535):
        raise ValueError(f"{text} is no port: ports go to 65535")
    return found


def _mount(entry: Any) -> Mount:
    if isinstance(entry, Mapping):
        return Mount(
            str(entry.get("source", "")), str(entry["target"]), entry.get("read_only") is True
        )
    source, _, rest = str(entry).partition(":")
    target, _, options = rest.partition(":")
    return Mount(source, target or source, "ro" in options.split(","))
