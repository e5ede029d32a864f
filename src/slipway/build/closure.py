"""Holds a lock against the wheels themselves: what each needs must be locked, in a fitting version.

`lock.check` sees only what the project asks for; what its dependencies ask for stands in their
wheels. A lock that was edited by hand, or resolved for another platform, is found out here.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

from slipway.build.lock import (
    Lock,
    normalise,
    parse_requirement,
    requirements,
    target_environment,
)
from slipway.build.matrix import Engine, Variant
from slipway.errors import IntegrityError, LockError


def check(
    lock: Lock,
    wheels: Mapping[str, Path],
    project: Mapping[str, Any],
    engine: Engine,
    variant: Variant,
) -> None:
    """Walk from the project's requirements through the wheels' own.

    Args:
        wheels: by name; what a package without one needs is not known, and passes.

    Raises:
        LockError: a wheel needs a package that is not locked, or not in that version.
        IntegrityError: a wheel has no metadata.
    """
    environment = target_environment(variant)
    waiting = [(text, str(engine.pyproject)) for text in requirements(project, engine.extra)]
    waiting += [(f"{name}=={lock.pins[name].version}", lock.path.name) for name in wheels]
    seen: set[tuple[str, str]] = set()
    needs: dict[str, list[str]] = {}
    while waiting:
        text, asker = waiting.pop()
        requirement = parse_requirement(text, asker)
        name = normalise(requirement.name)
        pin = lock.pins.get(name)
        if pin is None or not requirement.specifier.contains(pin.version, prereleases=True):
            has = f"has {name}=={pin.version}" if pin else "does not have it"
            raise LockError(
                f"{asker} needs {requirement.name}{requirement.specifier}, and {lock.path} {has}",
                f"slipway image lock {variant.name}",
            )
        if name not in needs:
            needs[name] = _needs(wheels[name]) if name in wheels else []
        for extra in ("", *sorted(requirement.extras)):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            for need in needs[name]:
                marker = parse_requirement(need, name).marker
                plain = marker is None or marker.evaluate(environment)
                wanted = marker is None or marker.evaluate({**environment, "extra": extra})
                if wanted and not (extra and plain):
                    waiting.append((need, f"{name}=={pin.version}"))


def _needs(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        names = [
            name
            for name in archive.namelist()
            if name.endswith(".dist-info/METADATA") and name.count("/") == 1
        ]
        if len(names) != 1:
            raise IntegrityError(f"{wheel.name} has {len(names)} METADATA files instead of one")
        metadata = HeaderParser().parsestr(archive.read(names[0]).decode("utf-8", "replace"))
    return list(metadata.get_all("Requires-Dist") or [])
