"""Reads `deploy/<site>/site.toml` and `topologies.toml` into the nouns of `model`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from slipway.deploy.model import (
    ConfigFile,
    Feature,
    FlagValue,
    Host,
    Role,
    Service,
    Site,
    SitePlan,
    Slot,
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
    features = {name: _feature(name, table, site) for name, table in top.tables("features")}
    defaults = top.raw("defaults")
    shapes, raw = top.raw("shapes"), top.raw("topologies")
    if both := sorted(shapes.keys() & raw.keys()):
        raise top.wrong(f"shapes.{both[0]}", "is the name of a topology too")
    everything = {**shapes, **raw}
    laid = {name: _with_defaults(_inherit(top, everything, name, ()), defaults) for name in raw}
    topologies: dict[str, Topology] = {}
    for name, table in Table(top.path, "", {"topologies": laid}).tables("topologies"):
        for topology in _topologies(name, table, site, features):
            if topology.name in topologies:
                raise table.wrong("", f"gives a second topology with the name {topology.name}")
            topologies[topology.name] = topology
    top.close()
    return SitePlan(
        site,
        {name: topology for name, topology in topologies.items() if not topology.retired},
        features,
        {name: topology for name, topology in topologies.items() if topology.retired},
    )


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
    host_gpus = host.integer("gpus", 0)
    site = Site(
        name,
        top.text("purpose"),
        Host(host_gpus, host.choice("network", ("bridge", "host"), "bridge")),
        image.text("variable", "SLIPWAY_IMAGE"),
        image.text("variant", "cpu"),
        volumes,
        variables,
        {key: _slot(key, table, host_gpus) for key, table in top.tables("slots")},
    )
    for table in (host, image, top):
        table.close()
    return site


def _slot(name: str, table: Table, gpus: int) -> Slot:
    _named(table, name)
    slot = Slot(name, table.items("gpus", int, "GPU indices"), table.integer("port-shift", 0))
    if beyond := [gpu for gpu in slot.gpus if gpu >= gpus]:
        raise table.wrong("gpus", f"{beyond} are not among the host's {gpus}")
    return slot


def _feature(name: str, table: Table, site: Site) -> Feature:
    _named(table, name)
    namespaces = table.items("namespaces", str, "namespaces")
    if strange := sorted(set(namespaces) - {"ipc", "pid"}):
        raise table.wrong("namespaces", f"must be of ipc and pid, not {strange[0]!r}")
    configs = []
    for key, target in table.raw("configs").items():
        if not isinstance(target, str) or not target.startswith("/"):
            raise table.wrong("configs", f"{key} must be a path in the container, not {target!r}")
        source = table.path.parent / key
        try:
            configs.append(ConfigFile(key, target, source.read_text(encoding="utf-8")))
        except (OSError, UnicodeDecodeError) as error:
            raise table.wrong("configs", f"{source} cannot be read: {error}") from None
    return Feature(
        name,
        table.text("purpose"),
        _flags(table, site.variables),
        _env(table, site.variables),
        table.text("store-env", ""),
        namespaces,
        tuple(configs),
    )


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
    # Where and whether something runs is never inherited.
    below = _inherit(top, raw, base, (*seen, name))
    return _over({k: v for k, v in below.items() if k not in ("slots", "retired")}, own)


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


def _topologies(
    name: str, table: Table, site: Site, features: Mapping[str, Feature]
) -> list[Topology]:
    """The topologies of one table: one for each of its slots."""
    _named(table, name)
    common = table.items("features", str, "feature names")
    services = tuple(
        _service(entry, key, site, features, common) for key, entry in table.tables("services")
    )
    if not services:
        raise table.wrong("services", "a topology has at least one service")
    retired = table.text("retired", "")
    if retired and not re.fullmatch(r"20\d{6}", retired):
        raise table.wrong("retired", f"must be a day as YYYYMMDD, not {retired!r}")
    purpose, slots = table.text("purpose"), table.items("slots", str, "slot names")
    if not slots:
        laid = _with_store(table, services, features)
        return [Topology(name, purpose, laid, name, "", retired)]
    found = []
    for slot in slots:
        if slot not in site.slots:
            there = ", ".join(site.slots) or "none"
            raise table.wrong("slots", f"{slot!r} is not declared", f"declared: {there}")
        laid = tuple(_in_slot(table, service, site.slots[slot]) for service in services)
        laid = _with_store(table, laid, features)
        found.append(Topology(f"{name}-{slot}", purpose, laid, name, slot, retired))
    return found


def _in_slot(table: Table, service: Service, slot: Slot) -> Service:
    beyond = [gpu for gpu in service.gpus if gpu >= len(slot.gpus)]
    if beyond:
        raise table.wrong(
            "slots",
            f"service {service.name} wants GPU {beyond[0]} of slot {slot.name}, "
            f"which has {len(slot.gpus)}",
            "services count a slot's GPUs from 0",
        )
    bootstrap = service.bootstrap_port
    return replace(
        service,
        gpus=tuple(slot.gpus[gpu] for gpu in service.gpus),
        port=service.port + slot.port_shift,
        bootstrap_port=None if bootstrap is None else bootstrap + slot.port_shift,
    )


def _with_store(
    table: Table, services: tuple[Service, ...], features: Mapping[str, Feature]
) -> tuple[Service, ...]:
    """Services whose features ask for the store's address, with it in their environment."""
    stores = [service for service in services if service.role is Role.STORE]
    result = []
    for service in services:
        asked = [features[name].store_env for name in service.features if features[name].store_env]
        if asked and not stores:
            raise table.wrong(
                "services",
                f"{service.name} has a feature that needs a store, and there is none",
                'add a service with role = "store"',
            )
        # One host, one network: a store is only ever asked where the network is the host's.
        env = {name: f"127.0.0.1:{store.port}" for name in asked for store in stores[:1]}
        result.append(replace(service, env={**env, **service.env}) if env else service)
    return tuple(result)


def _service(
    table: Table,
    name: str,
    site: Site,
    features: Mapping[str, Feature],
    common: tuple[str, ...] = (),
) -> Service:
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
        features=_features(table, common if role.is_engine else ()),
        volumes=table.items("volumes", str, "volume names"),
        flags=_flags(table, site.variables),
        env=_env(table, site.variables),
        shared_memory=table.text("shared-memory", ""),
        start_period=table.text("start-period", "10m"),
        program=table.text("program") if role is Role.STORE else "",
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


def _features(table: Table, common: tuple[str, ...]) -> tuple[str, ...]:
    """A service's own features after those that its topology gives to every engine."""
    own = table.items("features", str, "feature names")
    return (*common, *(name for name in own if name not in common))


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
