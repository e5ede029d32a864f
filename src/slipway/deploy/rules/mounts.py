"""Files that a service needs, and those that it lays over its image."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from slipway.deploy.check import Found, Rule, Severity, at
from slipway.deploy.scene import Scene, Seen

# Flags and variables whose value is a file that no image carries.
_FILE_FLAGS = (
    "tokenizer-path",
    "speculative-draft-model-path",
    "speculative-dspark-sps-table-path",
    "speculative-dspark-confidence-sts-path",
    "lmcache-config-file",
    "flexkv-config-file",
    "dllm-algorithm-config",
    "config",
    "ssl-keyfile",
    "ssl-certfile",
    "ssl-ca-certs",
)
_FILE_VARIABLES = (
    "SGLANG_HICACHE_MOONCAKE_CONFIG_PATH",
    "MOONCAKE_CONFIG_PATH",
    "LMCACHE_CONFIG_FILE",
    "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR",
)
# Folders of an image that hold its source or its packages.
_SOURCE = re.compile(
    r"^/(sgl-workspace|opt/keel/src|opt/keel/venv)(/|$)|/(site|dist)-packages(/|$)|\.(py|pyi|so)$"
)


def _absolute(path: str) -> bool:
    return path.startswith("/") and "<" not in path


def _there(seen: Seen, path: str) -> bool:
    """Whether the path lies in something that the file mounts."""
    inside = PurePosixPath(path)
    targets = [mount.target for mount in seen.service.mounts]
    targets += [_target(entry, "/") for entry in _entries(seen, "configs")]
    targets += [_target(entry, "/run/secrets/") for entry in _entries(seen, "secrets")]
    return any(inside.is_relative_to(target) for target in targets if target)


def _entries(seen: Seen, key: str) -> list[Any]:
    entries = seen.service.raw.get(key)
    return entries if isinstance(entries, list) else []


def _target(entry: Any, folder: str) -> str:
    """Where a config or secret appears: its target, or its name in the folder of its kind."""
    if isinstance(entry, dict):
        target = str(entry.get("target") or entry.get("source") or "")
    else:
        target = str(entry)
    return target if target.startswith("/") else f"{folder}{target}"


def _model(scene: Scene) -> Iterator[Found]:
    for seen, launch in scene.engines():
        if _absolute(launch.model) and not _there(seen, launch.model):
            inside = PurePosixPath(launch.model)
            yield at(
                seen,
                f"--model-path {inside} lies in no volume: the image carries no model",
                f"mount the model's folder at {inside.parent}",
            )


def _files(scene: Scene) -> Iterator[Found]:
    for seen, launch in scene.engines():
        needed = [(f"--{name}", launch.text(name)) for name in _FILE_FLAGS]
        needed += [(name, launch.env.get(name, "")) for name in _FILE_VARIABLES]
        for what, path in needed:
            if _absolute(path) and not _there(seen, path):
                yield at(
                    seen,
                    f"{what} is {path}, which no volume or config brings into the container",
                    f"mount it at {path}, or write it as an inline config",
                )


def _patch(scene: Scene) -> Iterator[Found]:
    for seen in scene.services:
        for mount in seen.service.mounts:
            if mount.source.startswith(("/", ".", "~")) and _SOURCE.search(mount.target):
                yield at(
                    seen,
                    f"{mount.source} lies over {mount.target} of the image: the image's tag no "
                    "longer says what runs",
                    "commit the change and build an image; a changed source file costs one layer",
                )


def _store(scene: Scene) -> Iterator[Found]:
    for seen, launch in scene.engines():
        master = launch.env.get("MOONCAKE_MASTER", "")
        if seen.on_host or not launch.has("hicache-storage-backend"):
            continue
        if re.match(r"(127\.0\.0\.1|localhost|\[::1\])(:|$)", master):
            yield at(
                seen,
                f"MOONCAKE_MASTER={master} is the container itself: its network is its own",
                "use network_mode: host, or the name of the master's service",
            )


RULES: tuple[Rule, ...] = (
    Rule(
        "model-mount",
        Severity.ERROR,
        "the model's path lies in no volume",
        "images carry no weights (docs/architecture.md)",
        _model,
    ),
    Rule(
        "file-mount",
        Severity.ERROR,
        "a file that a flag or a variable names and nothing mounts",
        "the process cannot start, or starts without its store",
        _files,
    ),
    Rule(
        "hot-patch",
        Severity.WARNING,
        "a file of the host laid over the image's source",
        "twelve services of the b300 site ran an uncommitted scheduler.py",
        _patch,
    ),
    Rule(
        "store-address",
        Severity.ERROR,
        "a store's address on loopback in a container with a network of its own",
        "the Compose specification, network_mode",
        _store,
    ),
)
