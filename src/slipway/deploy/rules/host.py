"""What a container takes of its host beyond what its engine needs, and its names."""

from __future__ import annotations

import re
from collections.abc import Iterator

from slipway.deploy.check import Found, Rule, Severity, at
from slipway.deploy.scene import Scene, Seen


def _privileged(scene: Scene) -> Iterator[Found]:
    for seen in scene.services:
        if seen.service.privileged:
            yield at(
                seen,
                "privileged gives the container every device and capability of the host",
                "drop it; reserve GPUs by `device_ids` and add single capabilities where needed",
            )


def _shares_memory(seen: Seen) -> bool:
    """Whether the engine hands device memory to another container of the host."""
    launch = seen.launch
    if launch is None:
        return False
    handles = ("MC_INTRANODE_NVLINK", "MC_INTRA_NVLINK")
    return bool(launch.role) and any(launch.switched(name) for name in handles)


def _pid(scene: Scene) -> Iterator[Found]:
    for seen in scene.services:
        if seen.service.raw.get("pid") == "host" and not _shares_memory(seen):
            yield at(
                seen,
                "pid: host shows the container every process of the host; only a cache that moves "
                "by NVLink to another container needs it",
                "drop pid: host",
            )


def _ipc(scene: Scene) -> Iterator[Found]:
    for seen in scene.services:
        if seen.service.raw.get("ipc") == "host" and not _shares_memory(seen):
            size = seen.service.raw.get("shm_size")
            yield at(
                seen,
                "ipc: host shares memory segments with every process of the host; the ranks of one "
                "container need only a large /dev/shm",
                f"drop ipc: host; shm_size: {size} is then enough"
                if size
                else "drop ipc: host, and set shm_size: 32gb",
            )


def _shm(scene: Scene) -> Iterator[Found]:
    for seen in scene.services:
        raw = seen.service.raw
        if raw.get("ipc") == "host" and raw.get("shm_size") and _shares_memory(seen):
            yield at(
                seen,
                f"shm_size: {raw['shm_size']} has no effect beside ipc: host, which takes the "
                "host's /dev/shm as it is",
                "drop shm_size",
            )


def _project(scene: Scene) -> Iterator[Found]:
    for file in scene.files:
        if file.project:
            continue
        said = [
            re.search(r"\bproject\s+([a-z0-9][a-z0-9_-]*)", each.text) for each in file.comments
        ]
        meant = next((match[1] for match in said if match), "")
        reason = (
            "the file names no project: Compose takes the folder's name, and files that are "
            "started from one folder replace each other's containers"
        )
        yield Found(
            "",
            f"{reason}; its comment says project {meant}" if meant else reason,
            f"add `name: {meant}` at the top" if meant else "add `name:` at the top",
            file.path,
        )


def _same_names(scene: Scene) -> Iterator[Found]:
    containers: dict[str, Seen] = {}
    services: dict[tuple[str, str], Seen] = {}
    for seen in scene.services:
        name = seen.service.container
        if name and "<" not in name:
            first = containers.setdefault(name, seen)
            if first is not seen:
                yield at(
                    seen,
                    f"container_name {name} is already that of {first.name}",
                    "give each its own, or drop container_name",
                    first,
                )
        if seen.file.project:
            first = services.setdefault((seen.file.project, seen.name), seen)
            if first is not seen and first.file is not seen.file:
                yield at(
                    seen,
                    f"project {seen.file.project} has a service {seen.name} already: starting this "
                    "file replaces it",
                    "give each file a project of its own",
                    first,
                )


def _one_project(scene: Scene) -> Iterator[Found]:
    first: dict[str, Seen] = {}
    for seen in scene.services:
        if seen.file.project:
            continue
        other = first.setdefault(seen.name, seen)
        if other.file.path.parent == seen.file.path.parent and other.file is not seen.file:
            yield at(
                seen,
                f"service {seen.name} of both files is one container of the folder's project: "
                "starting this file replaces the other's",
                "add a `name:` of its own to each file",
                other,
            )


_DOCKER = "Docker's documentation"

RULES: tuple[Rule, ...] = (
    Rule(
        "privileged",
        Severity.WARNING,
        "privileged, where less would do",
        f"{_DOCKER} of --privileged",
        _privileged,
    ),
    Rule(
        "pid-host",
        Severity.WARNING,
        "the host's process namespace, where nothing needs it",
        f"{_DOCKER} of --pid; the b300 site has it for prefill and decode over NVLink only",
        _pid,
    ),
    Rule(
        "ipc-host",
        Severity.WARNING,
        "the host's memory segments, where a large /dev/shm would do",
        f"{_DOCKER} of --ipc; NCCL's: shared memory of the container",
        _ipc,
    ),
    Rule(
        "shm-size",
        Severity.WARNING,
        "a size of /dev/shm that has no effect",
        f"{_DOCKER} of --ipc: host takes the host's /dev/shm",
        _shm,
    ),
    Rule(
        "project-name",
        Severity.WARNING,
        "no project name of its own",
        "the Compose specification, name",
        _project,
    ),
    Rule(
        "set-project",
        Severity.WARNING,
        "two files of one set whose services are one container to Compose",
        "the Compose specification, name: the project of a file without one is its folder",
        _one_project,
        together=True,
    ),
    Rule(
        "same-name",
        Severity.ERROR,
        "two containers of one name, or two files of one project and service",
        "Docker refuses the second; Compose replaces the first",
        _same_names,
        together=True,
    ),
)
