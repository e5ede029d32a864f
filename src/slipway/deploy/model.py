"""The nouns of a deployment: site, host, topology, service, feature."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias, TypeVar

from slipway.errors import ConfigError

Scalar: TypeAlias = str | int | float | bool
FlagValue: TypeAlias = (
    Scalar | tuple[Scalar, ...] | tuple[tuple[str, ...], ...] | Mapping[str, object]
)
V = TypeVar("V")


class Role(StrEnum):
    """What a service does in its topology."""

    SERVE = "serve"
    PREFILL = "prefill"
    DECODE = "decode"
    ROUTER = "router"
    STORE = "store"

    @property
    def is_engine(self) -> bool:
        """Whether the service holds a model."""
        return self in (Role.SERVE, Role.PREFILL, Role.DECODE)


@dataclass(frozen=True)
class Variable:
    """Something that the operator sets, written `${NAME}` in the site's tables.

    A variable without a default must be set: the rendered file refuses to start without it.
    """

    name: str
    purpose: str
    default: str | None = None
    example: str = ""

    @property
    def expression(self) -> str:
        """The variable in Compose's interpolation syntax."""
        if self.default is None:
            return f"${{{self.name}:?{self.purpose}}}"
        return f"${{{self.name}:-{self.default}}}"


@dataclass(frozen=True)
class Volume:
    """A folder of the host and where services see it."""

    name: str
    source: str
    target: str
    read_only: bool = True


@dataclass(frozen=True)
class Host:
    """The machine: how many GPUs it has, and how its services reach the network."""

    gpus: int = 0
    network: str = "bridge"


@dataclass(frozen=True)
class Slot:
    """A named part of the host that a topology can be laid into.

    Attributes:
        gpus: the host's GPUs, which services count from 0 within the slot.
        port_shift: added to every port, so that two slots run side by side.
    """

    name: str
    gpus: tuple[int, ...]
    port_shift: int = 0


@dataclass(frozen=True)
class Site:
    """One host and what every topology on it shares.

    Attributes:
        image_variable: the variable that a rendered (unpacked) file takes its image from.
        image_variant: the row of the image matrix that runs here.
    """

    name: str
    purpose: str
    host: Host = field(default_factory=Host)
    image_variable: str = "SLIPWAY_IMAGE"
    image_variant: str = "cpu"
    volumes: Mapping[str, Volume] = field(default_factory=dict)
    variables: Mapping[str, Variable] = field(default_factory=dict)
    slots: Mapping[str, Slot] = field(default_factory=dict)


@dataclass(frozen=True)
class ConfigFile:
    """A small file that a container gets from the Compose file itself: name, place, text."""

    name: str
    target: str
    content: str


@dataclass(frozen=True)
class Feature:
    """A named block of flags and environment that services switch on by name.

    Attributes:
        store_env: the variable that takes `host:port` of the topology's store.
        namespaces: what the container shares with the host, of `ipc` and `pid`.
        configs: files that the container gets with the Compose file.
    """

    name: str
    purpose: str
    flags: Mapping[str, FlagValue] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    store_env: str = ""
    namespaces: tuple[str, ...] = ()
    configs: tuple[ConfigFile, ...] = ()


@dataclass(frozen=True)
class Service:
    """One process of a topology.

    Attributes:
        gpus: indices of the host's GPUs; empty for a service on the CPU.
        tp, ep, dp, cp: tensor, expert, data and (prefill) context parallel sizes.
        port: where the process listens.
        publish: `address:port` on the host, for a site whose network is `bridge`.
        bootstrap_port: where a prefill service meets its decode services.
        features: names, in the order in which their flags are written.
        flags: overrides by name without dashes. True is a bare flag, False takes away one that a
            feature sets, a tuple is several words, a mapping is JSON.
        shared_memory: size of /dev/shm in Compose's units; "" for the engine's default of 64 MB.
        start_period: how long it may load before a failing health check counts.
        program: entry point of a service with the role `store`.
    """

    name: str
    role: Role
    port: int
    model: str = ""
    gpus: tuple[int, ...] = ()
    tp: int = 1
    ep: int = 1
    dp: int = 1
    cp: int = 1
    publish: str = ""
    bootstrap_port: int | None = None
    features: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()
    flags: Mapping[str, FlagValue] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    shared_memory: str = ""
    start_period: str = "10m"
    program: str = ""


@dataclass(frozen=True)
class Topology:
    """Services that are started, checked and packed as one.

    Attributes:
        name: `<table>` of `topologies.toml`, or `<table>-<slot>` where the table lists slots.
        table: the table that it comes from.
        slot: the part of the host that it is laid into; "" where the table lists none.
        retired: day of its retirement as YYYYMMDD; "" for one in use.
    """

    name: str
    purpose: str
    services: tuple[Service, ...]
    table: str = ""
    slot: str = ""
    retired: str = ""

    @property
    def front_door(self) -> Service:
        """What clients talk to: the router where there is one, else the first that serves."""
        for wanted in ((Role.ROUTER,), (Role.SERVE,), (Role.DECODE, Role.PREFILL)):
            for service in self.services:
                if service.role in wanted:
                    return service
        raise ConfigError(f"topology {self.name} has no service that clients could talk to")

    def having(self, *roles: Role) -> tuple[Service, ...]:
        """The services that have one of the roles, in order."""
        return tuple(service for service in self.services if service.role in roles)


@dataclass(frozen=True)
class SitePlan:
    """A site with its topologies and features, as `deploy/<site>/` holds them."""

    site: Site
    topologies: Mapping[str, Topology]
    features: Mapping[str, Feature] = field(default_factory=dict)
    retired: Mapping[str, Topology] = field(default_factory=dict)

    def deployment(self, topology: str) -> str:
        """A topology's name on this site: of its Compose project, archive and state folder."""
        return f"{self.site.name}-{topology}"


def settle(plan: SitePlan, service: Service) -> tuple[dict[str, FlagValue], dict[str, str]]:
    """Flags and environment of a service once its features are written out.

    The service's own values win over its features'.

    Raises:
        ConfigError: two features set one name to different values and the service does not decide.
    """
    flags: dict[str, FlagValue] = {}
    env: dict[str, str] = {}
    for name in service.features:
        feature = plan.features[name]
        _merge(flags, feature.flags, service.flags, service, name, "flag --")
        _merge(env, feature.env, service.env, service, name, "variable ")
    flags.update(service.flags)
    env.update(service.env)
    return {name: value for name, value in flags.items() if value is not False}, env


def _merge(
    into: dict[str, V],
    values: Mapping[str, V],
    decided: Mapping[str, V],
    service: Service,
    feature: str,
    kind: str,
) -> None:
    for name, value in values.items():
        if name not in decided and into.get(name, value) != value:
            raise ConfigError(
                f"service {service.name}: feature {feature} sets {kind}{name} to {value!r}, "
                f"another of its features to {into[name]!r}",
                f"drop one of the features, or set {name} on the service itself",
            )
        into[name] = value
