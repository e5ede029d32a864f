"""The words of a service's command, from its role, sizes, features and flags."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from slipway.deploy.model import FlagValue, Role, Service, SitePlan, Topology, settle

# Entry point of the store's master, of the package that the engine's transfers come from.
MASTER = "mooncake_master"

# Where a prefill engine that is not told otherwise meets its decode engines; SGLang's default.
BOOTSTRAP_PORT = 8998

# Subcommand of `keel`, which is the image's entry point.
PROGRAMS = {
    Role.SERVE: "serve",
    Role.PREFILL: "serve",
    Role.DECODE: "serve",
    Role.ROUTER: "router",
}

# Field of a service -> flag; written only where it is not 1.
SIZES = {"tp": "tp", "ep": "ep-size", "dp": "dp-size", "cp": "attn-cp-size"}

# With it the engine takes the attention group, tp / dp, as the context parallel size by itself,
# and for DSpark between prefill and decode it refuses a size that was written out.
PREFILL_CP = "enable-prefill-cp"

# The store's metrics stand at its port plus this.
STORE_METRICS = 1000


def command_of(
    plan: SitePlan, topology: Topology, service: Service
) -> tuple[list[str], dict[str, str]]:
    """Words after the entry point, and the environment, with `${NAME}` where the operator decides.

    What the service's fields say comes first, then its features in order, then its own flags.
    A flag is one word, `--name=value`, so that two commands compare line by line.

    Raises:
        ConfigError: the features contradict each other (`settle`).
    """
    flags, env = settle(plan, service)
    if service.role is Role.STORE:
        return list(_words({**_of_store(service), **flags})), env
    if service.role is Role.ROUTER:
        workers = _workers(plan, topology)
        return ["router", *_words({**_from_fields(service), **workers, **flags})], env
    fields = _from_fields(service)
    if PREFILL_CP in flags:
        fields.pop(SIZES["cp"], None)
    return [PROGRAMS[service.role], *_words({**fields, **flags})], env


def _of_store(service: Service) -> dict[str, FlagValue]:
    if service.program != MASTER:
        return {"port": service.port}
    return {"rpc_port": service.port, "metrics_port": service.port + STORE_METRICS}


def _workers(plan: SitePlan, topology: Topology) -> dict[str, FlagValue]:
    """The router's flags that name the topology's engines."""
    on_host = plan.site.host.network == "host"

    def url(service: Service) -> str:
        return f"http://{'127.0.0.1' if on_host else service.name}:{service.port}"

    prefill, decode = topology.having(Role.PREFILL), topology.having(Role.DECODE)
    if not prefill and not decode:
        serving = topology.having(Role.SERVE)
        return {"worker-urls": tuple(map(url, serving))} if serving else {}
    pairs = tuple((url(s), str(s.bootstrap_port or BOOTSTRAP_PORT)) for s in prefill)
    return {
        "pd-disaggregation": True,
        **({"prefill": pairs} if pairs else {}),
        **({"decode": tuple(map(url, decode))} if decode else {}),
    }


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
            # Several words, or, where each of them is several words itself, several flags.
            several = [word for word in value if isinstance(word, tuple)]
            for words in several or [tuple(map(str, value))]:
                yield f"--{name}"
                yield from words
        elif isinstance(value, Mapping):
            yield f"--{name}={json.dumps(value, ensure_ascii=False)}"
        else:
            yield f"--{name}={value}"
