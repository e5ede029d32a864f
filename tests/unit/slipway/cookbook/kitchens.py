"""Recipes for the tests of the cookbook."""

from __future__ import annotations

from pathlib import Path

from slipway.cookbook.load import Page, load_engines, load_hardware, load_page

ROOT = Path(__file__).resolve().parents[4]
LAB = Path(__file__).parent / "data" / "lab.toml"


def load(path: Path = LAB) -> Page:
    """A recipe outside of docs/, with the repository's engines and hardware."""
    return load_page(path, load_engines(ROOT), load_hardware(ROOT))


def changed(folder: Path, old: str, new: str) -> Path:
    """The lab recipe with one piece of its text replaced, as a file of its own."""
    text = LAB.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{old!r} is {text.count(old)} times in lab.toml"
    path = folder / "broken.toml"
    path.write_text(text.replace(old, new), encoding="utf-8")
    return path


def line(path: Path, text: str) -> int:
    """The line of a file's only place with a text."""
    content = path.read_text(encoding="utf-8")
    assert content.count(text) == 1, f"{text!r} is {content.count(text)} times in {path.name}"
    return content[: content.index(text)].count("\n") + 1
