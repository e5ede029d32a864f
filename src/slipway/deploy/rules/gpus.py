"""Which GPUs engines take: of each other, of the host, and of what they need."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from slipway.deploy.check import Found, Rule, Severity, at
from slipway.deploy.scene import Scene, Seen

# GPUs of a host where nobody said how many.
_USUAL = 8


def _shared(scene: Scene) -> Iterator[Found]:
    holders: dict[int, list[Seen]] = defaultdict(list)
    for seen in scene.services:
        clashes: dict[str, tuple[Seen, list[int]]] = {}
        for gpu in dict.fromkeys(seen.gpus):
            first = next((each for each in holders[gpu] if each.runs_beside(seen)), None)
            holders[gpu].append(seen)
            if first is not None:
                where = f"{first.file.path} {first.name}"
                clashes.setdefault(where, (first, []))[1].append(gpu)
        for other, gpus in clashes.values():
            yield at(
                seen,
                f"GPU {_list(gpus)} is already taken by {other.name}",
                "give each engine GPUs of its own",
                other,
            )
        if seen.replicas > 1 and seen.gpus:
            yield at(
                seen,
                f"{seen.replicas} replicas take the same GPUs {_list(list(seen.gpus))}",
                "write one service for each, with GPUs of its own",
            )


def _host(scene: Scene) -> Iterator[Found]:
    if scene.host_gpus is None:
        return
    for seen, _ in scene.engines():
        beyond = [gpu for gpu in seen.gpus if gpu >= scene.host_gpus]
        if beyond:
            has = f"0 to {scene.host_gpus - 1}" if scene.host_gpus else "none"
            yield at(
                seen,
                f"GPU {_list(beyond)} is not there: the host has {scene.host_gpus} ({has})",
                f"choose from GPUs {has}" if scene.host_gpus else "run it on another host",
            )


def _offered(seen: Seen) -> int | None:
    """How many GPUs the engine sees; None where that is not known."""
    reserved = seen.reserved
    inside = len(reserved.ids) if reserved.ids is not None else reserved.count
    if seen.visible is not None:
        own = len(dict.fromkeys(seen.visible))
        return own if inside is None or not seen.renumbers else min(own, inside)
    return inside if seen.renumbers else None


def _too_few(scene: Scene) -> Iterator[Found]:
    for seen, launch in scene.engines():
        offered = _offered(seen)
        if launch.text("device") == "cpu" or offered is None:
            continue
        if offered < launch.devices:
            yield at(
                seen,
                f"the engine needs {launch.devices} GPU(s) ({_product(seen)}) and sees {offered}",
                f"give it {launch.devices} GPUs, or lower --tp-size to {max(1, offered)}",
            )


def _too_many(scene: Scene) -> Iterator[Found]:
    for seen, launch in scene.engines():
        offered = _offered(seen)
        if launch.text("device") == "cpu" or offered is None or launch.nodes > 1:
            continue
        if offered > launch.devices:
            yield at(
                seen,
                f"the engine uses {launch.devices} GPU(s) ({_product(seen)}) of the {offered} that "
                "are set aside for it",
                f"name {launch.devices} GPUs, or raise --tp-size",
            )


def _product(seen: Seen) -> str:
    launch = seen.launch
    assert launch is not None
    factors = [f"tp {launch.tp}"]
    factors += [f"pp {launch.pp}"] if launch.pp > 1 else []
    factors += [f"dp {launch.replicas}"] if launch.replicas > 1 else []
    return " x ".join(factors) + (f" on {launch.nodes} hosts" if launch.nodes > 1 else "")


def _renumbered(scene: Scene) -> Iterator[Found]:
    for seen, _ in scene.engines():
        reserved, visible = seen.reserved, seen.visible
        if visible is None or not seen.renumbers:
            continue
        inside = len(reserved.ids) if reserved.ids is not None else reserved.count
        if inside is None:
            continue
        beyond = [gpu for gpu in visible if gpu >= inside]
        if beyond:
            yield at(
                seen,
                f"CUDA_VISIBLE_DEVICES names GPU {_list(beyond)}, but the container counts its "
                f"{inside} GPU(s) from 0",
                "drop CUDA_VISIBLE_DEVICES: device_ids already chooses",
            )


def _everything(scene: Scene) -> Iterator[Found]:
    for seen, launch in scene.engines():
        if not seen.reserved.everything or launch.nodes > 1:
            continue
        host = scene.host_gpus if scene.host_gpus is not None else scene.least_gpus
        if scene.host_gpus is None and seen.visible is not None:
            host = max(host, _USUAL)  # who narrows what is visible has more than that
        taken = len(dict.fromkeys(seen.gpus)) or launch.devices
        if taken < host:
            yield at(
                seen,
                f"all GPUs of the host are reserved; the engine takes {taken}"
                f" ({_list(list(seen.gpus))})",
                _reserve(seen),
            )


def _reserve(seen: Seen) -> str:
    by_name = f"reserve by name: device_ids: [{_ids(seen)}], without count"
    if seen.visible is None:
        return by_name
    return f"{by_name}; drop CUDA_VISIBLE_DEVICES, as the container then counts from 0"


def _ids(seen: Seen) -> str:
    return ", ".join(f'"{gpu}"' for gpu in seen.gpus)


def _list(gpus: list[int]) -> str:
    return ", ".join(map(str, gpus))


_COMPOSE = "the Compose specification, deploy.resources.reservations.devices"

RULES: tuple[Rule, ...] = (
    Rule(
        "gpu-shared",
        Severity.ERROR,
        "two engines on one GPU",
        f"{_COMPOSE}; `docker compose config` does not see it",
        _shared,
        together=True,
    ),
    Rule("gpu-host", Severity.ERROR, "a GPU that the host does not have", "site.toml", _host),
    Rule(
        "gpu-count",
        Severity.ERROR,
        "fewer GPUs than the parallel sizes need",
        "an engine takes tp x pp x dp GPUs; DP attention divides tp and takes none of its own",
        _too_few,
    ),
    Rule(
        "gpu-idle",
        Severity.WARNING,
        "more GPUs than the parallel sizes use",
        "an engine takes tp x pp x dp GPUs; the others are kept from other services",
        _too_many,
    ),
    Rule(
        "gpu-renumbered",
        Severity.ERROR,
        "CUDA_VISIBLE_DEVICES by the host's count in a container that counts from 0",
        "NVIDIA container toolkit: the devices of a container are numbered anew",
        _renumbered,
    ),
    Rule(
        "gpu-all",
        Severity.WARNING,
        "all GPUs reserved where fewer are used",
        f"{_COMPOSE}: device_ids",
        _everything,
    ),
)
