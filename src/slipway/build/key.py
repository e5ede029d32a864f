"""The dependency key: a sha256 over what decides the installed dependencies, and nothing else.

A change of a comment, of the version or of the source changes no key. The inputs are kept beside
the key, so that a plan can say which of them changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slipway.build.lock import Lock
from slipway.build.matrix import Engine, Variant
from slipway.image.layer import DEFAULT_COMPRESSION, FORMATS
from slipway.image.model import canonical_json, sha256

# Change it when equal inputs give another deps image.
LAYOUT = "venv/1"


@dataclass(frozen=True)
class DependencyKey:
    """The key, and its inputs by name; a value is text or a list of texts."""

    value: str
    inputs: Mapping[str, Any]


def compute(
    project: Mapping[str, Any],
    engine: Engine,
    variant: Variant,
    lock: Lock,
    base_digest: str,
    compression: str = DEFAULT_COMPRESSION,
    dockerfile: bytes | None = None,
) -> DependencyKey:
    """The dependency key of a variant.

    Args:
        project: `pyproject.toml` as a table.
        base_digest: of the base's manifest.
        compression: of the layers.
        dockerfile: the text from which a builder makes the dependencies, where one does.
    """
    table = project.get("project", {})
    inputs: dict[str, Any] = {
        "base": base_digest,
        "builder": variant.builder,
        "build-system": sorted(project.get("build-system", {}).get("requires", [])),
        "dependencies": sorted(
            [
                *table.get("dependencies", []),
                *table.get("optional-dependencies", {}).get(engine.extra, []),
            ]
        ),
        "format": f"{LAYOUT} {FORMATS[compression]}",
        "lock": sorted(
            f"{pin.name}=={pin.version} {sha256(' '.join(sorted(pin.hashes)).encode())[7:19]}"
            for pin in lock.pins.values()
        ),
        "own-layer": sorted(variant.own_layer),
        "platform": [str(variant.platform)],
        "python": variant.python,
        "roots": [engine.root, engine.venv],
        "scripts": sorted(
            f"{name} = {to}"
            for name, to in table.get("scripts", {}).items()
            if to.split(".")[0].split(":")[0] == engine.package
        ),
    }
    if dockerfile is not None:
        inputs["dockerfile"] = sha256(dockerfile)[7:19]
        inputs["args"] = [f"{name}={value}" for name, value in sorted(variant.args.items())]
    if variant.provided:
        inputs["provided"] = sorted(variant.provided)
    if variant.env:
        inputs["env"] = [f"{name}={value}" for name, value in sorted(variant.env.items())]
    return DependencyKey(sha256(canonical_json(inputs)).removeprefix("sha256:"), inputs)


def explain(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What differs between two keys' inputs, a clause each: `lock: torch 2.12.0 -> 2.13.0`."""
    clauses = []
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        if isinstance(old, list) and isinstance(new, list):
            clauses += _explain_list(name, old, new)
        elif name == "base":
            clauses.append(f"base {str(old)[7:19]} -> {str(new)[7:19]}")
        else:
            clauses.append(f"{name}: {old} -> {new}")
    return clauses


def _explain_list(name: str, old: list[str], new: list[str]) -> list[str]:
    if name != "lock":
        gone, come = sorted({*old} - {*new}), sorted({*new} - {*old})
        return [f"{name} {', '.join([*(f'-{x}' for x in gone), *(f'+{x}' for x in come)])}"]
    was = {entry.split("==")[0]: entry.split("==")[1].split(" ") for entry in old}
    now = {entry.split("==")[0]: entry.split("==")[1].split(" ") for entry in new}
    clauses = []
    for package in sorted({*was, *now}):
        if package not in now:
            clauses.append(f"lock -{package} {was[package][0]}")
        elif package not in was:
            clauses.append(f"lock +{package} {now[package][0]}")
        elif was[package][0] != now[package][0]:
            clauses.append(f"lock {package} {was[package][0]} -> {now[package][0]}")
        elif was[package] != now[package]:
            clauses.append(f"lock {package} {now[package][0]} with other hashes")
    return clauses
