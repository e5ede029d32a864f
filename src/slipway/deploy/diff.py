"""What differs between two deployments, by axis: computed from files, not from comments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from slipway.deploy.compose import ComposeFile
from slipway.deploy.scene import Seen, see

# Axis of a flag by the beginning of its name; the first that fits counts. Others are their own.
_FAMILIES = (
    ("hicache", ("hicache-", "enable-hierarchical-cache")),
    ("drafts", ("speculative-",)),
    ("transfer", ("disaggregation-",)),
    ("replay", ("enable-decoder-swa-bounded-replay", "enable-encoder-swa-bounded-replay")),
    ("cp", ("cp-", "enable-prefill-cp", "attn-cp-size")),
    ("dp", ("enable-dp-", "load-balance-method")),
)
# What the sizes, the role and the ports say already.
_TOLD = frozenset(
    ("tp-size", "ep-size", "dp-size", "attn-cp-size", "port", "host", "enable-prefill-cp",
     "disaggregation-mode", "disaggregation-bootstrap-port")
)  # fmt: skip
_TOLD_VARIABLES = frozenset(("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"))
_OFF = ""


@dataclass(frozen=True)
class Difference:
    """One axis on which two services differ.

    Attributes:
        service: its name in the first file, or in the second where the first has none.
        axis: e.g. `gpus`, `cp`, `hicache`, `env`, `image`.
        what: the value's name on the axis; the axis itself where it has only one.
        before, after: values as text; "" where there is none.
    """

    service: str
    axis: str
    what: str
    before: str
    after: str

    def __str__(self) -> str:
        name = self.what if self.what.startswith(self.axis) else f"{self.axis} {self.what}"
        if self.axis == "service":
            return f"{self.service}: only in the {'second' if self.after else 'first'} file"
        if not self.before or not self.after:
            value, state = self.before or self.after, "on" if self.after else "off"
            return f"{name} {state}" if value in ("on", "1") else f"{name} {state} ({value})"
        if self.axis in ("gpus", "port"):
            label = "GPUs" if self.axis == "gpus" else name
            return f"{label} {self.after} instead of {self.before}"
        return f"{name} {self.before} -> {self.after}"


def diff(first: ComposeFile, second: ComposeFile) -> list[Difference]:
    """All differences, service by service in the order of the first file.

    Services meet by name, then, of those left over, in order among the same role. What follows
    from a file being another file (project and container names, comments) is no difference.
    """
    found: list[Difference] = []
    for one, other in _pairs(first, second):
        if one is None or other is None:
            there = one or other
            assert there is not None
            states = (there.name, "") if one else ("", there.name)
            found.append(Difference(there.name, "service", there.name, *states))
            continue
        before, after = axes(one), axes(other)
        for key in [*before, *(key for key in after if key not in before)]:
            a, b = before.get(key, _OFF), after.get(key, _OFF)
            if a != b:
                found.append(Difference(one.name, *key, a, b))
    return found


def words(found: list[Difference]) -> list[str]:
    """The differences as sentences; those that several services share are said once."""
    lines: dict[str, list[str]] = {}
    for each in found:
        lines.setdefault(str(each), []).append(each.service)
    services = list(dict.fromkeys(each.service for each in found))
    return [
        line
        if len(services) == 1 or line.startswith(f"{who[0]}: ")
        else f"{', '.join(who)}: {line}"
        for line, who in lines.items()
    ]


def axes(seen: Seen) -> dict[tuple[str, str], str]:
    """A service's place on every axis: (axis, name on it) to value, "" never."""
    service, launch = seen.service, seen.launch
    values: dict[tuple[str, str], str] = {("role", "role"): role(seen)}
    gpus = seen.gpus or seen.reserved.ids or ()
    values["gpus", "gpus"] = ",".join(map(str, gpus)) or ("all" if seen.reserved.everything else "")
    values["port", "port"] = str(seen.listens or "")
    published = [f"{port.published}:{port.target}" for port in service.ports if port.published]
    values["port", "published port"] = ", ".join(published)
    if launch is not None:
        sizes = {
            "tp": launch.tp,
            "ep": launch.number("ep-size", 1),
            "dp": launch.number("dp-size", 1),
        }
        sizes["cp"] = max(launch.prefill_cp, launch.number("attn-cp-size", 1))
        values |= {(axis, axis): str(size) for axis, size in sizes.items() if size > 1}
        if launch.role in ("prefill", "decode"):
            values["port", "bootstrap port"] = str(launch.bootstrap_port)
        for name, given in launch.flags.items():
            if name not in _TOLD:
                values[_axis(name), _short(name)] = " ".join(given) or "on"
    elif service.words:
        values["command", "command"] = " ".join(service.words)
    for name, value in _environment(seen).items():
        values["env", name] = value
    values["image", "image"] = service.image
    for space in ("network_mode", "ipc", "pid", "shm_size"):
        values["container", space] = str(service.raw.get(space) or "")
    values["container", "privileged"] = "on" if service.privileged else ""
    for mount in service.mounts:
        values["mount", mount.target] = f"{mount.source}{' (ro)' if mount.read_only else ''}"
    return {key: value for key, value in values.items() if value}


def role(seen: Seen) -> str:
    """`serve`, `prefill`, `decode`, `router`, or the program that a service runs."""
    if seen.launch is not None:
        return seen.launch.role if seen.launch.role in ("prefill", "decode") else "serve"
    if seen.router is not None:
        return "router"
    return (
        "store" if any("mooncake" in w or "mc_store" in w for w in seen.service.words) else "other"
    )


def _environment(seen: Seen) -> Mapping[str, str]:
    own = dict(seen.service.environment)
    if seen.command is not None:
        own.update(seen.command.env)
    return {name: value for name, value in own.items() if name not in _TOLD_VARIABLES}


def _axis(flag: str) -> str:
    for axis, starts in _FAMILIES:
        if flag.startswith(starts):
            return axis
    return "flag"


def _short(flag: str) -> str:
    """A flag's name within its axis: `write-policy` of hicache."""
    axis = _axis(flag)
    for start in (f"{axis}-", "speculative-", "disaggregation-"):
        if axis != "flag" and flag.startswith(start):
            return flag.removeprefix(start)
    return axis if flag.startswith("enable-") and axis in ("hicache", "replay") else flag


def _pairs(first: ComposeFile, second: ComposeFile) -> Iterator[tuple[Seen | None, Seen | None]]:
    left = [see(first, service) for service in first.services]
    right = [see(second, service) for service in second.services]
    by_name = {seen.name: seen for seen in right}
    taken = {seen.name for seen in left if seen.name in by_name}
    spare = [seen for seen in right if seen.name not in taken]
    for seen in left:
        if seen.name in by_name:
            yield seen, by_name[seen.name]
            continue
        match = next((other for other in spare if role(other) == role(seen)), None)
        if match is not None:
            spare.remove(match)
        yield seen, match
    yield from ((None, seen) for seen in spare)
