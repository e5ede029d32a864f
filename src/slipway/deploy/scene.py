"""What the rules look at: the services of one file, or of files that are started together."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from keel.args.knowledge import Launch
from slipway.deploy.compose import ComposeFile, ComposeService
from slipway.deploy.engine import EngineCommand, RouterCommand, engine_of, router_of


@dataclass(frozen=True)
class Reserved:
    """The GPUs that a service asks Docker for.

    Attributes:
        everything: all of the host's.
        ids: indices on the host, where the file says which.
        count: how many, where it says only that.
        there: whether it asks for any.
    """

    everything: bool = False
    ids: tuple[int, ...] | None = None
    count: int | None = None
    there: bool = False


@dataclass(frozen=True)
class Seen:
    """A service of a file, and what it starts."""

    file: ComposeFile
    service: ComposeService
    command: EngineCommand | None
    router: RouterCommand | None

    @property
    def name(self) -> str:
        """The service's name."""
        return self.service.name

    @cached_property
    def launch(self) -> Launch | None:
        """The engine's flags and environment; None where it is no engine."""
        return self.command.launch(self.service.environment) if self.command else None

    @cached_property
    def listens(self) -> int | None:
        """The port of the engine or router; None where there is none, or it is not known."""
        if self.command:
            return self.command.port
        return self.router.port if self.router else None

    @property
    def on_host(self) -> bool:
        """Whether it shares the host's network."""
        return self.service.network_mode == "host"

    @cached_property
    def reserved(self) -> Reserved:
        """The GPUs that it asks Docker for."""
        return _reserved(self.service.raw, self.service.environment)

    @cached_property
    def visible(self) -> tuple[int, ...] | None:
        """GPUs that CUDA shows to the engine, by its own count; None where all, or not known."""
        environment = dict(self.service.environment)
        if self.command:
            environment.update(self.command.env)
        text = environment.get("CUDA_VISIBLE_DEVICES")
        return None if text is None else _indices(text)

    @cached_property
    def gpus(self) -> tuple[int, ...]:
        """Indices on the host of the GPUs that the engine computes on; () where not known."""
        launch, reserved = self.launch, self.reserved
        if launch is None or launch.text("device") == "cpu":
            return ()
        if not reserved.there and self.visible is None:
            return ()
        own: Sequence[int]
        if self.visible is not None:
            own = self.visible
        else:
            first, step = launch.number("base-gpu-id", 0), launch.number("gpu-id-step", 1)
            own = range(first, first + launch.devices * step, step) if step > 0 else ()
        own = own[: launch.devices]
        ids = reserved.ids
        if ids is None or not self.renumbers:
            return tuple(own)
        return tuple(ids[index] for index in own if index < len(ids))

    @cached_property
    def profiles(self) -> frozenset[str]:
        """Profiles that it is started with; empty where it always is."""
        entries = self.service.raw.get("profiles")
        return frozenset(map(str, entries)) if isinstance(entries, list) else frozenset()

    def runs_beside(self, other: Seen) -> bool:
        """Whether both are started: services of different profiles are alternatives."""
        mine, theirs = self.profiles, other.profiles
        return not mine or not theirs or bool(mine & theirs)

    @property
    def replicas(self) -> int:
        """How many containers the service is started as."""
        deploy = self.service.raw.get("deploy")
        count = self.service.raw.get("scale")
        if count is None and isinstance(deploy, dict):
            count = deploy.get("replicas")
        return count if isinstance(count, int) and not isinstance(count, bool) else 1

    @property
    def renumbers(self) -> bool:
        """Whether the container counts its GPUs from 0; a privileged one sees all of the host's."""
        return not self.service.privileged


@dataclass(frozen=True)
class Scene:
    """Files that are looked at as one.

    Attributes:
        host_gpus: GPUs of the host; None where nobody said.
        least_gpus: the fewest that it has, since files that were given name so many.
        known: every file that was given to the check, by name; comments may speak of them.
    """

    files: tuple[ComposeFile, ...]
    host_gpus: int | None = None
    least_gpus: int = 0
    known: Mapping[str, ComposeFile] = field(default_factory=dict)

    @cached_property
    def services(self) -> tuple[Seen, ...]:
        """All services of all files."""
        return tuple(see(file, service) for file in self.files for service in file.services)

    def engines(self) -> Iterator[tuple[Seen, Launch]]:
        """Services that start an engine."""
        for seen in self.services:
            if seen.launch is not None:
                yield seen, seen.launch


def see(file: ComposeFile, service: ComposeService) -> Seen:
    """A service with what it starts."""
    command = engine_of(service.words, service.environment)
    router = None if command else router_of(service.words, service.environment)
    return Seen(file, service, command, router)


def _reserved(raw: Mapping[str, Any], environment: Mapping[str, str]) -> Reserved:
    devices: Any = raw.get("deploy") or {}
    for key in ("resources", "reservations", "devices"):
        devices = devices.get(key) if isinstance(devices, dict) else None
    short = raw.get("gpus")
    if short == "all":
        return Reserved(everything=True, there=True)
    entries = [*(devices if isinstance(devices, list) else ())]
    entries += short if isinstance(short, list) else ()
    for entry in entries:
        if not isinstance(entry, dict) or not _is_gpu(entry):
            continue
        ids, count = entry.get("device_ids"), entry.get("count")
        if isinstance(ids, list):
            numbers = tuple(int(str(each)) for each in ids if re.fullmatch(r"\d{1,3}", str(each)))
            return Reserved(ids=numbers if len(numbers) == len(ids) else None, there=True)
        if isinstance(count, int) and not isinstance(count, bool) and count >= 0:
            return Reserved(count=count, there=True)
        return Reserved(everything=True, there=True)  # `all`, or nothing: both mean all
    if raw.get("runtime") == "nvidia":
        text = environment.get("NVIDIA_VISIBLE_DEVICES", "all")
        ids_ = _indices(text)
        return Reserved(everything=text == "all", ids=ids_ or None, there=True)
    return Reserved()


def _is_gpu(entry: Mapping[str, Any]) -> bool:
    capabilities = entry.get("capabilities") or []
    flat = str(capabilities)
    return "gpu" in flat or entry.get("driver") == "nvidia" or not capabilities


def _indices(text: str) -> tuple[int, ...] | None:
    """`0,1,2`; None for anything that names GPUs otherwise (UUIDs, `all`, variables)."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not all(re.fullmatch(r"\d{1,3}", word) for word in words):
        return None
    return tuple(int(word) for word in words)
