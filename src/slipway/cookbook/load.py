"""Reads recipes and their surroundings from `docs/cookbook/`; errors name file and line."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from slipway.cookbook.positions import Path as Place
from slipway.cookbook.positions import line_of, positions
from slipway.cookbook.recipe import Engine, Hardware, Kitchen, Recipe
from slipway.cookbook.structure import Problem, problems
from slipway.errors import ConfigError, UsageError

T = TypeVar("T")


class RecipeError(ConfigError):
    """A recipe is wrong; every line of the message is `file:line: what`."""


@dataclass(frozen=True)
class Source:
    """A TOML file: its text, data, and the line of every key."""

    path: Path
    data: dict[str, Any]
    lines: dict[Place, int]

    def at(self, place: Place) -> str:
        """`file:line` of a key."""
        return f"{self.path}:{line_of(self.lines, place)}"


@dataclass(frozen=True)
class Page:
    """A recipe with everything around it, and where its text lies."""

    kitchen: Kitchen
    source: Source

    @property
    def recipe(self) -> Recipe:
        """The recipe itself."""
        return self.kitchen.recipe

    @property
    def text(self) -> Path:
        """The page's Markdown file, beside the recipe."""
        return self.source.path.with_suffix(".md")


def find_root(start: Path) -> Path:
    """The repository that has a cookbook, at or above a folder.

    Raises:
        UsageError: there is none.
    """
    for folder in (start, *start.parents):
        if (folder / "docs" / "cookbook" / "recipes").is_dir():
            return folder
    raise UsageError(f"no docs/cookbook/recipes at or above {start}", "run it in a checkout")


def read_source(path: Path) -> Source:
    """Read a TOML file.

    Raises:
        RecipeError: the file cannot be read or is no TOML.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise RecipeError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path}:1: not UTF-8 at byte {error.start}") from error
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        words = str(error)
        _, _, place = words.partition("(at line ")
        line = place.split(",")[0] if place else str(text.count("\n") + 1)
        raise RecipeError(f"{path}:{line}: {words.split(' (at ')[0]}") from error
    return Source(path, data, positions(text))


def convert(source: Source, data: Any, kind: type[T], at: Place = ()) -> T:
    """Data as a noun.

    Raises:
        RecipeError: a key is missing, unknown or of the wrong type.
    """
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `")
        place = (*at, *_place(where.rstrip("`"), data))
        if what.startswith("Object contains unknown field `"):
            place = (*place, what.split("`")[1])
        raise RecipeError(f"{source.at(place)}: {_plain(what)}") from error


def _plain(what: str) -> str:
    return what.replace("Object contains unknown field", "unknown key").replace(
        "Object missing required field", "missing key"
    )


def _place(where: str, data: Any) -> Place:
    """msgspec's `$.cells[0].match[...]` as a path; `[...]` is a key that it does not name."""
    place: list[str | int] = []
    for part in where.removeprefix("$").replace("[", ".[").split("."):
        if part.startswith("[") and part[1:-1].isdigit():
            place.append(int(part[1:-1]))
        elif part and part != "[":
            place.append(part)
        elif part == "[":
            break
    return tuple(place)


def load_engines(root: Path) -> dict[str, Engine]:
    """The engines of `docs/cookbook/engines.toml`."""
    source = read_source(root / "docs/cookbook/engines.toml")
    return {name: convert(source, row, Engine, (name,)) for name, row in source.data.items()}


def load_hardware(root: Path) -> dict[str, Hardware]:
    """The machines of `docs/cookbook/hardware.toml`."""
    source = read_source(root / "docs/cookbook/hardware.toml")
    return {name: convert(source, row, Hardware, (name,)) for name, row in source.data.items()}


def load_page(path: Path, engines: dict[str, Engine], hardware: dict[str, Hardware]) -> Page:
    """Read and prove one recipe.

    Raises:
        RecipeError: naming every wrong line.
    """
    source = read_source(path)
    recipe = convert(source, {**source.data, "slug": path.stem}, Recipe)
    engine = engines.get(recipe.engine)
    if engine is None:
        raise RecipeError(
            f"{source.at(('engine',))}: engine {recipe.engine!r} is not in engines.toml",
            f"use one of {', '.join(engines)}",
        )
    kitchen = Kitchen(recipe, engine, hardware)
    refuse(source, problems(kitchen))
    used = {option.id for option in recipe.dimensions[0].options}
    near = {name: row for name, row in hardware.items() if name in used}
    return Page(Kitchen(recipe, engine, near), source)


def refuse(source: Source, found: list[Problem]) -> None:
    """Raise where there is a problem.

    Raises:
        RecipeError: one line a problem, the first one's remedy.
    """
    if found:
        raise RecipeError(
            "\n       ".join(f"{source.at(problem.path)}: {problem.what}" for problem in found),
            found[0].remedy,
        )


def load_pages(root: Path) -> dict[str, Page]:
    """Every recipe below `docs/cookbook/recipes`, by slug: those that we run first, then by title.

    Raises:
        RecipeError: there is none, or one is wrong.
    """
    folder = root / "docs/cookbook/recipes"
    paths = sorted(folder.glob("*/*.toml"))
    if not paths:
        raise RecipeError(f"{folder} has no */*.toml", "add a recipe")
    engines, hardware = load_engines(root), load_hardware(root)
    pages = [load_page(path, engines, hardware) for path in paths]
    pages.sort(key=lambda page: (page.recipe.status != "run", page.recipe.title))
    return {page.recipe.slug: page for page in pages}
