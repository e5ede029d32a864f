"""What must hold inside one recipe, whatever the engine: every rule names the line it is about."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from slipway.cookbook.generate import apply, blocked, cell_for, covers
from slipway.cookbook.positions import Path
from slipway.cookbook.recipe import (
    Cell,
    Dimension,
    Kitchen,
    Layer,
    Match,
    Recipe,
    matches,
    options_of,
)

BUILT_IN = ("nodes", "rank")
HARDWARE = "hw"
_ID = re.compile(r"[a-z0-9]+(?:[-_.][a-z0-9]+)*")
_BLANK = re.compile(r"\{\{([^}]*)\}\}")
_ENV = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)


@dataclass(frozen=True)
class Problem:
    """Something wrong in a recipe: where (a path of the TOML file), what, and the fix."""

    path: Path
    what: str
    remedy: str = ""


def problems(kitchen: Kitchen) -> list[Problem]:
    """Everything wrong with a recipe; later kinds are only sought where earlier ones are absent."""
    recipe = kitchen.recipe
    for find in (_ids, _matches, _texts, _cells, _layers, _choices):
        if found := list(find(kitchen, recipe)):
            return found
    return []


def groups_of(recipe: Recipe) -> dict[str, tuple[str, ...]]:
    """Options by id of a dimension or layer."""
    groups: tuple[Dimension | Layer, ...] = (*recipe.dimensions, *recipe.layers)
    return {group.id: tuple(option.id for option in group.options) for group in groups}


def _tables(recipe: Recipe) -> Iterator[tuple[Path, Dimension | Layer]]:
    for index, dimension in enumerate(recipe.dimensions):
        yield ("dimensions", index), dimension
    for index, layer in enumerate(recipe.overlays):
        yield ("overlays", index), layer
    for index, layer in enumerate(recipe.cards):
        yield ("cards", index), layer


def _layer_tables(recipe: Recipe) -> Iterator[tuple[Path, Layer]]:
    for path, group in _tables(recipe):
        if isinstance(group, Layer):
            yield path, group


def _ids(kitchen: Kitchen, recipe: Recipe) -> Iterator[Problem]:
    seen: set[str] = {value.id for value in kitchen.engine.values}
    seen |= {value.id for value in kitchen.engine.multi_node_values}
    for path, group in _tables(recipe):
        if not _ID.fullmatch(group.id):
            yield Problem((*path, "id"), f"id {group.id!r} is no id", "use a-z, 0-9 and -")
        if group.id in seen:
            yield Problem((*path, "id"), f"id {group.id!r} is taken", "give each its own")
        seen.add(group.id)
        options = [option.id for option in group.options]
        for index, option in enumerate(options):
            where = (*path, "options", index)
            if not _ID.fullmatch(option):
                yield Problem(where, f"id {option!r} is no id", "use a-z, 0-9 and -")
            if option in options[:index]:
                yield Problem(where, f"option {option!r} is there twice", "remove one")
        if group.default not in options:
            yield Problem(
                (*path, "default"),
                f"default {group.default!r} is none of {', '.join(options)}",
                "name one of the options",
            )
    for index, value in enumerate(recipe.values):
        if value.id in seen:
            yield Problem(("values", index), f"id {value.id!r} is taken", "give each its own")
        seen.add(value.id)
    if recipe.dimensions[0].id != HARDWARE:
        yield Problem(("dimensions", 0), f"the first dimension is not {HARDWARE!r}", "move it up")
        return
    for index, choice in enumerate(recipe.dimensions[0].options):
        if choice.id not in kitchen.hardware:
            yield Problem(
                ("dimensions", 0, "options", index),
                f"hardware {choice.id!r} is not in hardware.toml",
                f"add it there, or use one of {', '.join(kitchen.hardware)}",
            )


def _wrong_match(match: Match, path: Path, known: Mapping[str, Sequence[str]]) -> Iterator[Problem]:
    for id_, value in match.items():
        where = (*path, id_)
        if id_ not in known:
            yield Problem(where, f"nothing here has the id {id_!r}", f"use {', '.join(known)}")
            continue
        options = options_of(value)
        for index, option in enumerate(options):
            if option not in known[id_]:
                yield Problem(
                    where if isinstance(value, str) else (*where, index),
                    f"{id_} has no option {option!r}: this can never match",
                    f"use {', '.join(known[id_])}",
                )
            elif option in options[:index]:
                yield Problem((*where, index), f"{option!r} is there twice", "remove one")
        if not options:
            yield Problem(where, f"{id_} allows nothing: this can never match", "name options")


def _matches(kitchen: Kitchen, recipe: Recipe) -> Iterator[Problem]:
    known = groups_of(recipe)
    dimensions = [dimension.id for dimension in recipe.dimensions]
    only = {id_: known[id_] for id_ in dimensions}
    for index, cell in enumerate(recipe.cells):
        path: Path = ("cells", index, "match")
        yield from _wrong_match(cell.match, path, only)
        for missing in [id_ for id_ in dimensions if id_ not in cell.match]:
            yield Problem(path, f"match says nothing about {missing!r}", f"add {missing}")
        if cell.nodes < 1:
            yield Problem(("cells", index, "nodes"), f"{cell.nodes} nodes", "1 or more")
        if cell.nodes > 1 and not kitchen.engine.multi_node:
            yield Problem(
                ("cells", index, "nodes"),
                f"{kitchen.engine.title} runs on one node, not {cell.nodes}",
                "leave nodes out",
            )
    for table, matched in (
        ("unavailable", [(rule.when, "when") for rule in recipe.unavailable]),
        ("images", [(image.match, "match") for image in recipe.images]),
        ("models", [(model.match, "match") for model in recipe.models]),
        ("companions", [(extra.when, "when") for extra in recipe.companions]),
    ):
        allowed = only if table == "unavailable" else known
        for index, (match, key) in enumerate(matched):
            yield from _wrong_match(match, (table, index, key), allowed)
    for index, record in enumerate(recipe.verified):
        yield from _wrong_match(dict(record.choices), ("verified", index, "choices"), known)
    for index, figure in enumerate(recipe.figures):
        yield from _wrong_match(dict(figure.choices), ("figures", index, "choices"), known)
    yield from _wrong_rules(recipe, known)


def _wrong_rules(recipe: Recipe, known: Mapping[str, Sequence[str]]) -> Iterator[Problem]:
    before = {dimension.id: known[dimension.id] for dimension in recipe.dimensions}
    for path, layer in _layer_tables(recipe):
        for number, option in enumerate(layer.options):
            for index, rule in enumerate(option.disable):
                where = (*path, "options", number, "disable", index)
                if layer.id in rule.when:
                    yield Problem(
                        where,
                        f"{layer.id} {option.id!r} disables itself: its rule is about its own card",
                        "make the rule about something that is chosen before",
                    )
                    continue
                later = [id_ for id_ in rule.when if id_ in known and id_ not in before]
                for id_ in later:
                    yield Problem(
                        where,
                        f"the rule is about {id_!r}, which is applied later",
                        f"move {id_} before {layer.id}, or put the rule there",
                    )
                known_part = {k: v for k, v in rule.when.items() if k not in later}
                yield from _wrong_match(known_part, (*where, "when"), before)
                if not rule.when and not rule.flags:
                    yield Problem(where, "the rule has no condition", "add when or with")
            if option.id == layer.default and option.disable:
                yield Problem(
                    (*path, "options", number, "disable"),
                    f"{layer.id}'s default {option.id!r} can be disabled",
                    "let the default be an option that always works",
                )
        before[layer.id] = known[layer.id]


def _texts(kitchen: Kitchen, recipe: Recipe) -> Iterator[Problem]:
    engine = kitchen.engine
    blanks = {value.id for value in (*engine.values, *recipe.values)}
    entries: list[tuple[Path, str, str]] = []
    for index, cell in enumerate(recipe.cells):
        entries += [(("cells", index, "flags", n), "flag", f) for n, f in enumerate(cell.flags)]
        entries += [(("cells", index, "env", n), "env", e) for n, e in enumerate(cell.env)]
    for path, layer in _layer_tables(recipe):
        for number, option in enumerate(layer.options):
            at = (*path, "options", number)
            entries += [((*at, "flags", n), "flag", f) for n, f in enumerate(option.flags)]
            entries += [((*at, "env", n), "env", e) for n, e in enumerate(option.env)]
    entries += [(("models", n, "name"), "", m.name) for n, m in enumerate(recipe.models)]
    entries += [(("mounts", n), "", mount) for n, mount in enumerate(recipe.mounts)]
    for path, kind, text in entries:
        if kind == "flag" and not text.startswith("--"):
            yield Problem(path, f"{text!r} is no flag", 'write "--name value"')
        elif kind == "flag" and "=" in text.split(" ", 1)[0]:
            yield Problem(path, f"{text!r} joins name and value", 'write "--name value"')
        if kind == "env" and not _ENV.fullmatch(text):
            yield Problem(path, f"{text!r} is no variable", 'write "NAME=value"')
        for blank in _BLANK.findall(text):
            if blank not in blanks:
                yield Problem(
                    path, f"nobody fills in {{{{{blank}}}}}", f"use {', '.join(sorted(blanks))}"
                )


def _combinations(cell: Cell, recipe: Recipe) -> Iterator[dict[str, str]]:
    ids = [dimension.id for dimension in recipe.dimensions]
    for values in itertools.product(*(options_of(cell.match[id_]) for id_ in ids)):
        yield dict(zip(ids, values, strict=True))


def _named(choice: Mapping[str, str]) -> str:
    return " ".join(f"{id_}={value}" for id_, value in choice.items())


def _cells(kitchen: Kitchen, recipe: Recipe) -> Iterator[Problem]:
    owner: dict[tuple[str, ...], int] = {}
    for index, cell in enumerate(recipe.cells):
        for choice in _combinations(cell, recipe):
            key = tuple(choice.values())
            if key in owner:
                yield Problem(
                    ("cells", index),
                    f"two cells match {_named(choice)}: this one and number {owner[key] + 1}",
                    "narrow one of the two matches",
                )
                break
            owner[key] = index
        for number, rule in enumerate(recipe.unavailable):
            hidden = [c for c in _combinations(cell, recipe) if matches(rule.when, c)]
            if hidden:
                yield Problem(
                    ("cells", index),
                    f"the cell is unreachable for {_named(hidden[0])}: unavailable number "
                    f"{number + 1} says {rule.because!r}",
                    "narrow the cell's match or the rule",
                )
        names = [flag.split(" ", 1)[0] for flag in cell.flags]
        for number, name in enumerate(names):
            if name in names[:number]:
                yield Problem(("cells", index, "flags", number), f"{name} is there twice")
    used = {pair for cell in recipe.cells for pair in _pairs(cell)}
    for number, dimension in enumerate(recipe.dimensions):
        for place, option in enumerate(dimension.options):
            if (dimension.id, option.id) not in used:
                yield Problem(
                    ("dimensions", number, "options", place),
                    f"no cell has {dimension.id} {option.id!r}",
                    "add one, or remove the option",
                )
    start = {dimension.id: dimension.default for dimension in recipe.dimensions}
    if cell_for(recipe, start) is None:
        yield Problem(
            ("dimensions", 0, "default"),
            f"the defaults have no cell: {_named(start)}",
            "add one, or change a default",
        )


def _pairs(cell: Cell) -> Iterator[tuple[str, str]]:
    for id_, value in cell.match.items():
        for option in options_of(value):
            yield id_, option


def _layers(kitchen: Kitchen, recipe: Recipe) -> Iterator[Problem]:
    """Strip rules that strip nothing, and options that no combination allows."""
    everything = [flag for cell in recipe.cells for flag in cell.flags]
    everything += [flag for layer in recipe.layers for o in layer.options for flag in o.flags]
    for path, layer in _layer_tables(recipe):
        for number, option in enumerate(layer.options):
            for index, pattern in enumerate(option.strip):
                if not any(covers(pattern, flag) for flag in everything):
                    yield Problem(
                        (*path, "options", number, "strip", index),
                        f"{pattern!r} strips nothing: no cell or option has such a flag",
                        "remove it, or correct the name",
                    )


def _choices(kitchen: Kitchen, recipe: Recipe) -> Iterator[Problem]:
    """Images and models of every cell; options that are never available."""
    offered: set[tuple[str, str]] = set()
    used: dict[str, set[int]] = {"images": set(), "models": set()}
    for index, cell in enumerate(recipe.cells):
        for choice in _combinations(cell, recipe):
            for full in _walk(recipe, choice, list(cell.flags), offered):
                for table, found in (
                    ("images", _best([image.match for image in recipe.images], full)),
                    ("models", _best([model.match for model in recipe.models], full)),
                ):
                    if not found:
                        yield Problem(
                            ("cells", index),
                            f"no {table[:-1]} for {_named(full)}",
                            f"add an entry to [[{table}]]",
                        )
                        return
                    if len(found) > 1:
                        yield Problem((table, found[1]), f"two {table} match {_named(full)}")
                        return
                    used[table].add(found[0])
    for path, layer in _layer_tables(recipe):
        for number, option in enumerate(layer.options):
            if (layer.id, option.id) not in offered:
                yield Problem(
                    (*path, "options", number),
                    f"{layer.id} {option.id!r} disables itself: its rules cover every cell",
                    "narrow the rules, or remove the option",
                )
    for table, count in (("images", len(recipe.images)), ("models", len(recipe.models))):
        for number in range(count):
            if number not in used[table]:
                yield Problem((table, number), "no combination uses this", "remove it")


def _walk(
    recipe: Recipe, choice: dict[str, str], flags: list[str], offered: set[tuple[str, str]]
) -> Iterator[dict[str, str]]:
    """Choices with every option that is available, one layer at a time, the others at default.

    Images and models may depend on any layer, but two layers at once is what no entry does, so
    the walk is linear in the number of options, not in their product.
    """
    full = dict(choice)
    for layer in recipe.layers:
        for option in layer.options:
            if blocked(option, full, flags) is None:
                offered.add((layer.id, option.id))
                rest = {other.id: other.default for other in recipe.layers}
                yield {**choice, **rest, layer.id: option.id}
        full[layer.id] = layer.default
        start = next(option for option in layer.options if option.id == layer.default)
        flags = apply(flags, start)
    yield full


def _best(entries: Sequence[Match], choices: Mapping[str, str]) -> list[int]:
    """The numbers of the most specific entries that match; there should be exactly one."""
    found = [(len(match), n) for n, match in enumerate(entries) if matches(match, choices)]
    top = max((size for size, _ in found), default=0)
    return [number for size, number in found if size == top]
