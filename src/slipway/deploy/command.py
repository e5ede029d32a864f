"""The words of a service's command, from its role, sizes, features and flags."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from slipway.deploy.model import FlagValue, Role, Service, SitePlan, settle

# Subcommand of `keel`, which is the image's entry point.
PROGRAMS = {
    Role.SERVE: "serve",
    Role.PREFILL: "serve",
    Role.DECODE: "serve",
    Role.ROUTER: "router",
}

# Field of a service -> flag; written only where it is not 1.
SIZES = {"tp": "tp", "ep": "ep-size", "dp": "dp-size", "cp": "attn-cp-size"}


def command_of(plan: SitePlan, service: Service) -> tuple[list[str], dict[str, str]]:
    """Words after the entry point, and the environment, with `${NAME}` where the operator decides.

    What the service's fields say comes first, then its features in order, then its own flags.
    A flag is one word, `--name=value`, so that two commands compare line by line.

    Raises:
        ConfigError: the features contradict each other (`settle`).
    """
    flags, env = settle(plan, service)
    return [PROGRAMS[service.role], *_words({**_from_fields(service), **flags})], env


def _from_fields(service: Service) -> dict[str, FlagValue]:
    flags: dict[str, FlagValue] = {}
    if service.model:
        flags["model-path"] = service.model
    flags["host"] = "0.0.0.0"
    flags["port"] = service.port
    for field, flag in SIZES.items():
        if (size := getattr(service, field)) != 1:
            flags[flag] = size
    if service.role in (Role.PREFILL, Role.DECODE):
        flags["disaggregation-mode"] = service.role.value
    if service.bootstrap_port is not None:
        flags["disaggregation-bootstrap-port"] = service.bootstrap_port
    return flags


def _words(flags: Mapping[str, FlagValue]) -> Iterator[str]:
    for name, value in flags.items():
        if value is True:
            yield f"--{name}"
        elif isinstance(value, tuple):
            yield f"--{name}"
            yield from map(str, value)
        elif isinstance(value, Mapping):
            yield f"--{name}={json.dumps(value, ensure_ascii=False)}"
        else:
            yield f"--{name}={value}"
