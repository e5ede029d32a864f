"""Reads `deploy/<site>/site.toml` and `topologies.toml` into the nouns of `model`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipway.deploy.model import (
    Feature,
    FlagValue,
    Host,
    Role,
    Service,
    Site,
    SitePlan,
    Topology,
    Variable,
    Volume,
)
from slipway.deploy.tables import Table, read_toml
from slipway.errors import ConfigError, UsageError

_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
VARIABLE = re.compile(r"\$\{([^}]*)\}")
_VARIABLE_NAME = re.compile(r"[A-Z][A-Z0-9_]*")


def load_site(folder: Path) -> SitePlan:
    """Read one site's folder.

    Raises:
        ConfigError: a file is missing or wrong; the message names file, table and key.
    """
    site = _site(folder)
    top = read_toml(folder / "topologies.toml")
    features = {
        name: Feature(
            name,
            table.text("purpose"),
            _flags(table, site.variables),
            _env(table, site.variables),
        )
        for name, table in top.tables("features")
    }
    defaults = top.raw("defaults")
    raw = top.raw("topologies")
    laid = {name: _with_defaults(_inherit(top, raw, name, ()), defaults) for name in raw}
    topologies = {
        name: _topology(name, table, site, features)
        for name, table in Table(top.path, "", {"topologies": laid}).tables("topologies")
    }
    top.close()
    return SitePlan(site, topologies, features)


def load_all(root: Path) -> dict[str, SitePlan]:
    """Every site below `root/deploy`, by name.

    Raises:
        ConfigError: there is none, or one of them is wrong.
    """
    folders = sorted(path.parent for path in (root / "deploy").glob("*/site.toml"))
    if not folders:
        raise ConfigError(
            f"there is no deploy/<site>/site.toml below {root}",
            "run slipway from a checkout of the repository",
        )
    return {folder.name: load_site(folder) for folder in folders}


def find_deployment(plans: Mapping[str, SitePlan], name: str) -> tuple[SitePlan, Topology]:
    """The site and topology of a deployment's name, e.g. `local-cpu-single`.

    Raises:
        UsageError: no topology of any site has this name; the remedy lists those there are.
    """
    known = {
        plan.deployment(topology.name): (plan, topology)
        for plan in plans.values()
        for topology in plan.topologies.values()
    }
    if name not in known:
        import difflib

        near = difflib.get_close_matches(name, known, 3) or sorted(known)
        raise UsageError(f"there is no deployment {name!r}", f"known: {', '.join(near)}")
    return known[name]


def find_root(start: Path) -> Path:
    """The nearest folder, from `start` upwards, that holds `deploy/<site>/site.toml`.

    Raises:
        UsageError: there is none up to the root of the file system.
    """
    for folder in (start, *start.parents):
        if any((folder / "deploy").glob("*/site.toml")):
            return folder
    raise UsageError(
        f"no folder from {start} upwards holds deploy/<site>/site.toml",
        "run slipway from a checkout of the repository",
    )


def _site(folder: Path) -> Site:
    top = read_toml(folder / "site.toml")
    name = _named(top, top.text("name"))
    if name != folder.name:
        raise top.wrong("name", f"is {name!r} but the folder is {folder.name!r}")
    host, image = top.table("host"), top.table("image")
    variables = {}
    for key, table in top.tables("variables"):
        if not _VARIABLE_NAME.fullmatch(key):
            raise table.wrong("", "a variable's name is capitals, digits and _")
        variables[key] = Variable(
            key,
            table.text("purpose"),
            table.optional_text("default"),
            table.text("example", ""),
        )
        if "}" in f"{variables[key].purpose}{variables[key].default}":
            raise table.wrong("", "a brace would end Compose's ${NAME:…} early")
    volumes = {
        key: Volume(
            key,
            _declared(table, "source", variables),
            table.text("target"),
            table.boolean("read-only", True),
        )
        for key, table in top.tables("volumes")
    }
    site = Site(
        name,
        top.text("purpose"),
        Host(host.integer("gpus", 0), host.choice("network", ("bridge", "host"), "bridge")),
        image.text("variable", "SLIPWAY_IMAGE"),
        image.text("variant", "cpu"),
        volumes,
        variables,
    )
    for table in (host, image, top):
        table.close()
    return site


def _inherit(
    top: Table, raw: Mapping[str, Any], name: str, seen: tuple[str, ...]
) -> dict[str, Any]:
    """A topology's table laid over the one that it `extends`, if any."""
    table = raw[name]
    if not isinstance(table, dict):
        raise top.wrong(f"topologies.{name}", "must be a table")
    base = table.get("extends")
    if base is None:
        return table
    if base not in raw or base in (*seen, name):
        raise ConfigError(
            f"{top.path}: [topologies.{name}] extends: "
            + (f"{base!r} is no topology" if base not in raw else f"{base!r} extends it in turn")
        )
    own = {key: value for key, value in table.items() if key != "extends"}
    return _over(_inherit(top, raw, base, (*seen, name)), own)


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` laid over `below`, table by table; lists and values are replaced whole."""
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        result[key] = (
            _over(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
        )
    return result


def _with_defaults(topology: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """A topology's table with `[defaults]` laid under each of its engines."""
    services = topology.get("services", {})
    if not isinstance(services, dict):
        return dict(topology)
    front = (Role.ROUTER.value, Role.STORE.value)
    return {
        **topology,
        "services": {
            name: _over(defaults, service)
            if isinstance(service, dict) and service.get("role") not in front
            else service
            for name, service in services.items()
        },
    }


def _topology(name: str, table: Table, site: Site, features: Mapping[str, Feature]) -> Topology:
    _named(table, name)
    services = tuple(
        _service(entry, key, site, features) for key, entry in table.tables("services")
    )
    if not services:
        raise table.wrong("services", "a topology has at least one service")
    return Topology(name, table.text("purpose"), services)


def _service(table: Table, name: str, site: Site, features: Mapping[str, Feature]) -> Service:
    _named(table, name)
    role = Role(table.choice("role", tuple(role.value for role in Role)))
    service = Service(
        name=name,
        role=role,
        port=table.port("port"),
        model=_declared(table, "model", site.variables) if role.is_engine else "",
        gpus=table.items("gpus", int, "GPU indices"),
        tp=table.integer("tp", 1, minimum=1),
        ep=table.integer("ep", 1, minimum=1),
        dp=table.integer("dp", 1, minimum=1),
        cp=table.integer("cp", 1, minimum=1),
        publish=_declared(table, "publish", site.variables, ""),
        bootstrap_port=table.port("bootstrap-port") if "bootstrap-port" in table.data else None,
        features=table.items("features", str, "feature names"),
        volumes=table.items("volumes", str, "volume names"),
        flags=_flags(table, site.variables),
        env=_env(table, site.variables),
        shared_memory=table.text("shared-memory", ""),
        start_period=table.text("start-period", "10m"),
    )
    for key, names, known in (
        ("features", service.features, features),
        ("volumes", service.volumes, site.volumes),
    ):
        for wanted in names:
            if wanted not in known:
                there = ", ".join(known) or "none"
                raise table.wrong(key, f"{wanted!r} is not declared", f"declared: {there}")
    if service.publish and site.host.network == "host":
        raise table.wrong("publish", "a site on the host's network publishes nothing")
    beyond = [gpu for gpu in service.gpus if gpu >= site.host.gpus]
    if beyond:
        raise table.wrong("gpus", f"{beyond} are not among the host's {site.host.gpus}")
    return service


def _named(table: Table, name: str) -> str:
    if not _NAME.fullmatch(name):
        raise table.wrong("", f"{name!r} is no name: small letters, digits and single dashes")
    return name


def _declared(
    table: Table, key: str, variables: Mapping[str, Variable], default: str | None = None
) -> str:
    text = table.text(key) if default is None else table.text(key, default)
    _refuse_undeclared(table, key, text, variables)
    return text


def _refuse_undeclared(
    table: Table, key: str, text: str, variables: Mapping[str, Variable]
) -> None:
    for name in VARIABLE.findall(text):
        if name not in variables:
            raise table.wrong(
                key,
                f"${{{name}}} is not declared in site.toml",
                f"add a table [variables.{name}], or use one of {', '.join(variables) or 'none'}",
            )


def _flags(table: Table, variables: Mapping[str, Variable]) -> dict[str, FlagValue]:
    flags: dict[str, FlagValue] = {}
    for name, value in table.raw("flags").items():
        if name.startswith("-"):
            raise table.wrong("flags", f"write {name!r} without its dashes")
        if not isinstance(value, str | int | float | list | dict):
            raise table.wrong("flags", f"{name} cannot be {value!r}")
        if isinstance(value, str):
            _refuse_undeclared(table, "flags", value, variables)
        flags[name] = tuple(value) if isinstance(value, list) else value
    return flags


def _env(table: Table, variables: Mapping[str, Variable]) -> dict[str, str]:
    env = table.raw("env")
    for name, value in env.items():
        if not isinstance(value, str):
            raise table.wrong("env", f"{name} must be a string, not {value!r}")
        _refuse_undeclared(table, "env", value, variables)
    return env
