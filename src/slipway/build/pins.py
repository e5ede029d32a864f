"""Pins: versions that several rows of the matrix share, each written once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from slipway.build import matrix as matrices
from slipway.build.matrix import PATH
from slipway.errors import UsageError

_SECTION = re.compile(r"^\[pins\][^\n]*\n(?P<body>.*?)(?=^\[|\Z)", re.MULTILINE | re.DOTALL)


def users(root: Path) -> dict[str, list[str]]:
    """Which rows of the matrix change with each pin: found by changing it."""
    text = (root / PATH).read_text()
    before = matrices.parse(text)
    return {
        name: [
            row
            for row, variant in matrices.parse(_changed(text, name, f"{value}x")).variants.items()
            if variant != before.variants[row]
        ]
        for name, value in before.pins.items()
    }


def bump(root: Path, name: str, value: str) -> list[str]:
    """Write a pin's new value; gives the rows that it changes.

    Nothing else of the file moves, comments included.

    Raises:
        UsageError: there is no such pin, or the value is none.
    """
    path = root / PATH
    text = path.read_text()
    before = matrices.parse(text)
    known: Mapping[str, str] = before.pins
    if name not in known:
        raise UsageError(f"there is no pin {name!r}", f"the pins are: {', '.join(known)}")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]*", value):
        raise UsageError(f"{value!r} is no version, commit or reference")
    changed = _changed(text, name, value)
    after = matrices.parse(changed)
    path.write_text(changed)
    return [row for row, variant in after.variants.items() if variant != before.variants[row]]


def _changed(text: str, name: str, value: str) -> str:
    section = _SECTION.search(text)
    assert section is not None
    line = re.compile(rf"^({re.escape(name)}\s*=\s*)\"[^\"]*\"", re.MULTILINE)
    body = line.sub(lambda found: f'{found[1]}"{value}"', section["body"], count=1)
    return text[: section.start("body")] + body + text[section.end("body") :]
