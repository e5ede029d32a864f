"""The rules of `slipway deploy check`: what a Compose file can get wrong about its engines."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from slipway.deploy.check import Found, Rule, Severity
from slipway.deploy.compose import ComposeFile, ComposeService
from slipway.deploy.engine import complaint, engine_of

_LOOPBACK_URL = re.compile(r"https?://(?:127\.0\.0\.1|localhost|\[::1\])(?::(\d+))?")
_LOOPBACK_CALL = re.compile(r"['\"](?:127\.0\.0\.1|localhost|::1)['\"]\s*,\s*(\d+)")
# Docker's fixed sets of host addresses that overlap with every other.
_ANY_ADDRESS = frozenset(("", "0.0.0.0", "::"))


def listening_port(service: ComposeService) -> int | None:
    """The port that an engine listens on; None where the service is no engine."""
    command = engine_of(service.words)
    return command.port if command else None


def _flags(file: ComposeFile) -> Iterator[Found]:
    for service in file.services:
        command = engine_of(service.words)
        if command and (said := complaint(command)):
            yield Found(service.name, *said)


def _image(file: ComposeFile) -> Iterator[Found]:
    for service in file.services:
        if service.image and "@sha256:" not in service.image and not service.image_guarded:
            yield Found(
                service.name,
                f"image {service.image} is not pinned: another push changes what starts",
                "write it by digest (name@sha256:…), or let `slipway deploy pack` pin it",
            )


def _health_port(file: ComposeFile) -> Iterator[Found]:
    for service in file.services:
        listens = listening_port(service)
        test = " ".join(service.health_test)
        asked = {int(port) for port in _LOOPBACK_URL.findall(test) if port}
        asked |= {int(port) for port in _LOOPBACK_CALL.findall(test)}
        if listens is not None and asked and listens not in asked:
            yield Found(
                service.name,
                f"the health check asks port {min(asked)}, the engine listens on {listens}",
                f"ask port {listens}",
            )


def _published_port(file: ComposeFile) -> Iterator[Found]:
    for service in file.services:
        listens = listening_port(service)
        if listens is None or not service.ports:
            continue
        if service.network_mode == "host":
            yield Found(
                service.name,
                "ports are published on the host's network, where Docker ignores them",
                "drop `ports`, or `network_mode: host`",
            )
        elif listens not in {port.target for port in service.ports}:
            targets = ", ".join(str(port.target) for port in service.ports)
            yield Found(
                service.name,
                f"port {targets} is published, but the engine listens on {listens}",
                f"publish {listens}",
            )


def _taken_port(file: ComposeFile) -> Iterator[Found]:
    holders: dict[int, list[tuple[str, str]]] = defaultdict(list)
    for service in file.services:
        listens = listening_port(service)
        if service.network_mode == "host":
            if listens is not None:
                holders[listens].append(("", service.name))
        else:
            for port in service.ports:
                if port.published is not None:
                    holders[port.published].append((port.address, service.name))
    for number, holding in holders.items():
        for index, (address, name) in enumerate(holding):
            others = [
                other
                for there, other in holding[:index]
                if there == address or there in _ANY_ADDRESS or address in _ANY_ADDRESS
            ]
            if others:
                yield Found(
                    name,
                    f"port {number} of the host is already taken by {others[0]}",
                    "give each service a port of its own",
                )


def _model_mount(file: ComposeFile) -> Iterator[Found]:
    for service in file.services:
        command = engine_of(service.words)
        if not command or not command.model.startswith("/"):
            continue
        inside = PurePosixPath(command.model)
        if not any(inside.is_relative_to(mount.target) for mount in service.mounts):
            yield Found(
                service.name,
                f"--model-path {inside} lies in no volume: the image carries no model",
                f"mount the model's folder at {inside.parent}",
            )


def _privileged(file: ComposeFile) -> Iterator[Found]:
    for service in file.services:
        if service.privileged:
            yield Found(
                service.name,
                "privileged gives the container every device and capability of the host",
                "drop it; reserve GPUs by `device_ids` and add single capabilities where needed",
            )


def _project(file: ComposeFile) -> Iterable[Found]:
    if not file.project:
        yield Found(
            "",
            "the file names no project: Compose takes the folder's name, and files that are "
            "started from one folder replace each other's containers",
            "add `name:` at the top",
        )


_COMPOSE = "the Compose specification"

RULES: tuple[Rule, ...] = (
    Rule(
        "engine-flags",
        Severity.ERROR,
        "the engine's own parser refuses the command",
        "keel.args, with which the server starts",
        _flags,
    ),
    Rule(
        "health-port",
        Severity.ERROR,
        "the health check asks a port on which the engine does not listen",
        "the container never becomes healthy",
        _health_port,
    ),
    Rule(
        "published-port",
        Severity.ERROR,
        "a published port on which nobody listens",
        f"{_COMPOSE}, ports and network_mode",
        _published_port,
    ),
    Rule(
        "taken-port",
        Severity.ERROR,
        "two services want one port of the host",
        f"{_COMPOSE}, ports; `docker compose config` does not see it",
        _taken_port,
    ),
    Rule(
        "model-mount",
        Severity.ERROR,
        "the model's path lies in no volume",
        "images carry no weights (docs/architecture.md)",
        _model_mount,
    ),
    Rule(
        "image-pinned",
        Severity.WARNING,
        "an image that can change under its name",
        "tags move; digests do not",
        _image,
    ),
    Rule(
        "privileged",
        Severity.WARNING,
        "privileged, where less would do",
        "Docker's own documentation of --privileged",
        _privileged,
    ),
    Rule(
        "project-name",
        Severity.WARNING,
        "no project name of its own",
        f"{_COMPOSE}, name",
        _project,
    ),
)
