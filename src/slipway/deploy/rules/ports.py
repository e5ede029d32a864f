"""Who listens where: on the host's network, on published ports, and where health checks ask."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from slipway.deploy.check import Found, Rule, Severity, at
from slipway.deploy.scene import Scene, Seen

_LOOPBACK_URL = re.compile(r"https?://(?:127\.0\.0\.1|localhost|\[::1\])(?::(\d+))?")
_LOOPBACK_CALL = re.compile(r"['\"](?:127\.0\.0\.1|localhost|::1)['\"]\s*,\s*(\d+)")
_LOOPBACK_BARE = re.compile(r"(?:^|\s)(?:127\.0\.0\.1|localhost)(?::|\s+)(\d{2,5})(?=\s|/|$)")
# Docker's fixed sets of host addresses that overlap with every other.
_ANY_ADDRESS = frozenset(("", "0.0.0.0", "::"))
# An engine with DP attention takes ports of its own for its groups: port + 233 and those after it,
# six and one for each group (SGLang 0.5.23, PortArgs).
_DERIVED_FROM, _DERIVED = 233, 7


@dataclass(frozen=True)
class _Holder:
    seen: Seen
    address: str
    what: str


def _health(scene: Scene) -> Iterator[Found]:
    for seen in scene.services:
        test = " ".join(seen.service.health_test)
        asked = {int(port) for port in _LOOPBACK_URL.findall(test) if port}
        asked |= {int(port) for port in _LOOPBACK_CALL.findall(test)}
        asked |= {int(port) for port in _LOOPBACK_BARE.findall(test)}
        if seen.listens is not None and asked and seen.listens not in asked:
            who = "engine" if seen.command else "router"
            yield at(
                seen,
                f"the health check asks port {min(asked)}, the {who} listens on {seen.listens}",
                f"ask port {seen.listens}",
            )


def _published(scene: Scene) -> Iterator[Found]:
    for seen in scene.services:
        listens, ports = seen.listens, seen.service.ports
        if listens is None or not ports:
            continue
        if seen.on_host:
            yield at(
                seen,
                "ports are published on the host's network, where Docker ignores them",
                "drop `ports`, or `network_mode: host`",
            )
        elif listens not in {port.target for port in ports}:
            targets = ", ".join(str(port.target) for port in ports)
            who = "engine" if seen.command else "router"
            yield at(
                seen,
                f"port {targets} is published, but the {who} listens on {listens}",
                f"publish {listens}",
            )


def _loopback(scene: Scene) -> Iterator[Found]:
    for seen in scene.services:
        command = seen.command or seen.router
        if command is None or seen.on_host or not seen.service.ports:
            continue
        host = command.value("--host")
        if host in ("127.0.0.1", "localhost", "::1") or host is None:
            yield at(
                seen,
                f"ports are published, but --host is {host or '127.0.0.1, as nothing says else'}: "
                "only the container itself can connect",
                "write --host 0.0.0.0",
            )


def _taken(scene: Scene) -> Iterator[Found]:
    holders: dict[int, list[_Holder]] = defaultdict(list)
    for seen in scene.services:
        for number, holder in _held(seen):
            holders[number].append(holder)
    told: set[tuple[str, str]] = set()
    for number, holding in sorted(holders.items()):
        for index, holder in enumerate(holding):
            others = [
                other
                for other in holding[:index]
                if other.seen.runs_beside(holder.seen)
                and (
                    other.address == holder.address
                    or other.address in _ANY_ADDRESS
                    or holder.address in _ANY_ADDRESS
                )
            ]
            if not others:
                continue
            first = others[0]
            pair = (first.seen.name + first.what, holder.seen.name + holder.what)
            if holder.what == "a port of its DP groups" and pair in told:
                continue
            told.add(pair)
            what = f" as {holder.what}" if holder.what else ""
            by = f", as {first.what}" if first.what else ""
            yield at(
                holder.seen,
                f"port {number} of the host{what} is already taken by {first.seen.name}{by}",
                "give each service a port of its own",
                first.seen,
            )


def _held(seen: Seen) -> Iterator[tuple[int, _Holder]]:
    """Ports of the host that a service takes."""
    if not seen.on_host:
        for port in seen.service.ports:
            if port.published is not None:
                yield port.published, _Holder(seen, port.address, "")
        return
    if seen.listens is None:
        return
    yield seen.listens, _Holder(seen, "", "")
    launch = seen.launch
    if launch is None:
        return
    if launch.role == "prefill":
        yield launch.bootstrap_port, _Holder(seen, "", "its bootstrap port")
    if launch.program == "sglang" and launch.attention_dp > 1 and not launch.has("dist-init-addr"):
        first = seen.listens + _DERIVED_FROM
        for number in range(first, first + _DERIVED):
            yield number, _Holder(seen, "127.0.0.1", "a port of its DP groups")


def _bootstrap(scene: Scene) -> Iterator[Found]:
    for seen, launch in scene.engines():
        if launch.role != "prefill" or seen.on_host:
            continue
        beside = [
            other
            for other in scene.services
            if other.file is seen.file
            and not other.on_host
            and other.launch is not None
            and other.launch.role == "decode"
        ]
        published = {port.target for port in seen.service.ports}
        if not beside and launch.bootstrap_port not in published:
            yield at(
                seen,
                f"no decode engine can meet it: its bootstrap port {launch.bootstrap_port} is "
                "inside the container's own network, is not published, and no decode engine is "
                "beside it",
                "use network_mode: host as prefill and decode of one host need, or put the decode "
                "engine into this file",
            )


def _router(scene: Scene) -> Iterator[Found]:
    prefills = {
        seen.listens: (seen, launch)
        for seen, launch in scene.engines()
        if launch.role == "prefill" and seen.listens is not None
    }
    for seen in scene.services:
        if seen.router is None:
            continue
        for words in seen.router.pairs("--prefill"):
            port = re.search(r":([0-9]{1,5})/?$", words[0]) if words else None
            engine = prefills.get(int(port[1])) if port else None
            if engine is None or len(words) < 2 or not re.fullmatch(r"[0-9]{1,5}", words[1]):
                continue
            other, launch = engine
            if int(words[1]) != launch.bootstrap_port:
                yield at(
                    seen,
                    f"the router gives bootstrap port {words[1]} for {words[0]}, but {other.name} "
                    f"has {launch.bootstrap_port}",
                    f"write --prefill {words[0]} {launch.bootstrap_port}",
                    other,
                )


def _front_door(scene: Scene) -> Iterator[Found]:
    """A router's workers by port on the host's network: does anyone listen there?"""
    for seen in scene.services:
        if seen.router is None or not seen.on_host or len(scene.files) > 1:
            continue
        listening = {other.listens for other in scene.services if other.on_host}
        given = [*seen.router.pairs("--prefill"), *seen.router.pairs("--decode")]
        urls = [words[0] for words in given if words]
        urls += [url for words in seen.router.pairs("--worker-urls") for url in words]
        for url in urls:
            match = re.fullmatch(r"https?://(?:127\.0\.0\.1|localhost):([0-9]{1,5})/?", url)
            if match and len(listening) > 1 and int(match[1]) not in listening:
                yield at(
                    seen,
                    f"the router sends to {url}, where no service of this file listens",
                    "write the port of one of its engines",
                )


_COMPOSE = "the Compose specification"

RULES: tuple[Rule, ...] = (
    Rule(
        "health-port",
        Severity.ERROR,
        "the health check asks a port on which nobody listens",
        "the container never becomes healthy",
        _health,
    ),
    Rule(
        "published-port",
        Severity.ERROR,
        "a published port on which nobody listens",
        f"{_COMPOSE}, ports and network_mode",
        _published,
    ),
    Rule(
        "loopback-host",
        Severity.ERROR,
        "a published port of a process that listens on the container's loopback only",
        "Docker forwards to the container's address; --host defaults to 127.0.0.1",
        _loopback,
    ),
    Rule(
        "taken-port",
        Severity.ERROR,
        "two services want one port of the host",
        f"{_COMPOSE}, ports; `docker compose config` does not see it",
        _taken,
        together=True,
    ),
    Rule(
        "bootstrap-port",
        Severity.ERROR,
        "a prefill engine that no decode engine can meet",
        "SGLang's disaggregation: decode engines fetch the handshake from the bootstrap port",
        _bootstrap,
    ),
    Rule(
        "router-bootstrap",
        Severity.ERROR,
        "a router that gives a prefill engine another bootstrap port than it has",
        "keel router --prefill URL PORT",
        _router,
        together=True,
    ),
    Rule(
        "router-worker",
        Severity.ERROR,
        "a router that sends to a port on which nobody listens",
        "keel router --prefill, --decode and --worker-urls",
        _front_door,
    ),
)
