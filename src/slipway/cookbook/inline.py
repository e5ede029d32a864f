"""A recipe as the browser's rule engine reads it: plain data, empty parts left out."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from slipway.cookbook.generate import cell_for, complete, fingerprint, parts
from slipway.cookbook.recipe import Kitchen

_EMPTY: tuple[object, ...] = ("", [], {})
# Only the page's own text shows these; the rule engine does not read them.
_UNREAD = ("summary", "facts", "figures", "status", "vendor", "engine", "verified")


def inline(kitchen: Kitchen) -> dict[str, Any]:
    """`{recipe, engine, hardware, sealed}`; `sealed` are the verification records that hold.

    The browser compares a command's own image, flags and environment with a record's instead of
    hashing them.
    """
    recipe = msgspec.to_builtins(kitchen.recipe)
    for key in _UNREAD:
        recipe.pop(key, None)
    return {
        "recipe": _without_empty(recipe),
        "engine": _without_empty(msgspec.to_builtins(kitchen.engine)),
        "hardware": {name: {"maker": row.maker} for name, row in kitchen.hardware.items()},
        "sealed": _sealed(kitchen),
    }


def _sealed(kitchen: Kitchen) -> list[dict[str, str]]:
    found = []
    for record in kitchen.recipe.verified:
        full = complete(kitchen, record.choices)
        cell = cell_for(kitchen.recipe, full)
        if cell is None:
            continue
        image, flags, env = parts(kitchen, cell, full)
        if fingerprint(image, flags, env) == record.hash:
            key = json.dumps(
                [image, flags, sorted(env.items())], separators=(",", ":"), ensure_ascii=False
            )
            seal = {"key": key, "hash": record.hash, "date": record.date}
            found.append(seal | {"hardware": record.hardware, "how": record.how})
    return found


def _without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: _without_empty(part) for key, part in value.items()}
        return {
            key: part for key, part in kept.items() if part not in ("", [], {}) or key == "match"
        }
    if isinstance(value, list):
        return [_without_empty(part) for part in value]
    return value
