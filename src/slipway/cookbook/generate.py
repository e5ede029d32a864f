"""The rule engine: from a recipe and a reader's choices to one command. Pure functions only.

`assets/panel.js` is its twin in the browser; both are held to the same golden vectors.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from slipway.cookbook.recipe import (
    Cell,
    Dimension,
    Image,
    Kitchen,
    Layer,
    LayerOption,
    ModelName,
    Need,
    Recipe,
    Value,
    Verified,
    matches,
)
from slipway.cookbook.versions import shortfall
from slipway.errors import UsageError

Matched = TypeVar("Matched", Image, ModelName)


class ChoiceError(UsageError):
    """Choices for which the recipe has no command.

    Args:
        reasons: one sentence each.
        nearest: choices that work, nearest first; those that it leaves out can stay as they are.
    """

    def __init__(self, reasons: Sequence[str], nearest: Sequence[Mapping[str, str]] = ()) -> None:
        remedy = ""
        if nearest:
            words = [" ".join(f"{k}={v}" for k, v in choice.items()) for choice in nearest]
            remedy = "nearest that work: " + "; ".join(words)
        super().__init__("; ".join(reasons), remedy)
        self.reasons = tuple(reasons)
        self.nearest = tuple(nearest)


class Node(msgspec.Struct, frozen=True):
    """What one machine starts: words natively, and the words after the image's name."""

    words: tuple[str, ...]
    container_words: tuple[str, ...]


class Command(msgspec.Struct, frozen=True):
    """What a reader is given.

    Args:
        choices: complete: dimensions, layers and values.
        env: (name, value), sorted by name.
        nodes: one entry a machine, head node first.
        hash: of image, flags and environment before the reader's values were filled in.
        verified: the record whose hash is this command's, or None: nobody here ran it.
    """

    recipe: str
    choices: dict[str, str]
    model: str
    image: str
    env: tuple[tuple[str, str], ...]
    nodes: tuple[Node, ...]
    mounts: tuple[str, ...]
    companions: tuple[tuple[str, tuple[str, ...]], ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    hash: str
    verified: Verified | None


def generate(kitchen: Kitchen, choices: Mapping[str, str]) -> Command:
    """The command that a recipe gives for choices; what is not chosen has its default.

    Args:
        choices: by id of a dimension, an overlay, a card, or a value.

    Raises:
        ChoiceError: an id or option is unknown, no cell matches, or a layer's option is disabled.
    """
    recipe, engine = kitchen.recipe, kitchen.engine
    full = complete(kitchen, choices)
    cell = cell_for(recipe, full)
    if cell is None:
        raise ChoiceError([why_no_cell(recipe, full)], nearest(recipe, full))
    flags, env, notes, needs, reasons = compose(recipe, cell, full)
    if reasons:
        works = {layer.id: layer.default for layer in recipe.layers if layer.id in reasons}
        raise ChoiceError(list(reasons.values()), [dimensions_of(recipe, full) | works])
    image = select(recipe.images, full)
    name = select(recipe.models, full)
    assert image is not None  # `structure.problems` proved that every cell has both
    assert name is not None
    record = fingerprint(image.reference, flags, env)
    filled = {value.id: full[value.id] for value in values_of(kitchen, cell)}
    model = fill(name.name, filled)
    several = engine.multi_node if cell.nodes > 1 else ()
    nodes = []
    for rank in range(cell.nodes):
        blanks = {**filled, "nodes": str(cell.nodes), "rank": str(rank)}
        inside = {**blanks, "host": "0.0.0.0"} if engine.network == "bridge" else blanks
        body = (*flags, *several, *engine.tail)
        nodes.append(
            Node(
                words=(*engine.entry, engine.model_flag, model, *words_of(body, blanks)),
                container_words=(
                    *engine.container_entry,
                    engine.model_flag,
                    fill(name.in_container, filled) or model,
                    *words_of(body, inside),
                ),
            )
        )
    gaps = [gap for need in needs if (gap := shortfall(image, need))]
    return Command(
        recipe=recipe.slug,
        choices=full,
        model=model,
        image=image.reference,
        env=tuple(sorted((key, fill(value, filled)) for key, value in env.items())),
        nodes=tuple(nodes),
        mounts=tuple(fill(mount, filled) for mount in (*engine.mounts, *recipe.mounts)),
        companions=tuple(
            (extra.title, tuple(fill(word, filled) for word in extra.words))
            for extra in recipe.companions
            if matches(extra.when, full)
        ),
        notes=tuple(notes),
        warnings=tuple(([image.floating] if image.floating else []) + gaps),
        hash=record,
        verified=next((seal for seal in recipe.verified if seal.hash == record), None),
    )


def complete(kitchen: Kitchen, choices: Mapping[str, str]) -> dict[str, str]:
    """Choices with every default filled in, in the order of the page.

    Raises:
        ChoiceError: an id or an option that the recipe does not have.
    """
    recipe = kitchen.recipe
    groups: tuple[Dimension | Layer, ...] = (*recipe.dimensions, *recipe.layers)
    options = {group.id: [option.id for option in group.options] for group in groups}
    defaults = {group.id: group.default for group in groups}
    for value in all_values(kitchen):
        defaults[value.id] = value.default
    for id_, chosen in choices.items():
        if id_ not in defaults:
            known = ", ".join([*options, *(value.id for value in all_values(kitchen))])
            raise ChoiceError([f"{recipe.title} has no choice {id_!r}; it has {known}"])
        if id_ in options and chosen not in options[id_]:
            raise ChoiceError([f"{id_} {chosen!r} is none of {', '.join(options[id_])}"])
    return {**defaults, **{id_: choices[id_] for id_ in defaults if id_ in choices}}


def all_values(kitchen: Kitchen) -> tuple[Value, ...]:
    """The blanks of a recipe, those of its engine first."""
    engine = kitchen.engine
    several = any(cell.nodes > 1 for cell in kitchen.recipe.cells)
    return engine.values + (engine.multi_node_values if several else ()) + kitchen.recipe.values


def values_of(kitchen: Kitchen, cell: Cell) -> tuple[Value, ...]:
    """The blanks that one cell's command has."""
    engine = kitchen.engine
    several = engine.multi_node_values if cell.nodes > 1 else ()
    return engine.values + several + kitchen.recipe.values


def dimensions_of(recipe: Recipe, choices: Mapping[str, str]) -> dict[str, str]:
    """Only the dimensions' part of choices."""
    return {dimension.id: choices[dimension.id] for dimension in recipe.dimensions}


def cell_for(recipe: Recipe, choices: Mapping[str, str]) -> Cell | None:
    """The one cell that matches; `structure.problems` proved that there is no second."""
    return next((cell for cell in recipe.cells if matches(cell.match, choices)), None)


def why_no_cell(recipe: Recipe, choices: Mapping[str, str]) -> str:
    """One sentence on why there is no cell for choices."""
    for rule in recipe.unavailable:
        if matches(rule.when, choices):
            return rule.because
    labels = [
        next(option.label for option in dimension.options if option.id == choices[dimension.id])
        for dimension in recipe.dimensions
    ]
    return f"no recipe for {', '.join(labels)}"


def nearest(
    recipe: Recipe, choices: Mapping[str, str], keep: str = "", limit: int = 3
) -> list[dict[str, str]]:
    """Dimension choices that have a cell, by how few dimensions change; later ones change first.

    Args:
        keep: a dimension that must stay as it is, where any cell allows it.
    """
    ranked = []
    for order, choice in enumerate(cell_choices(recipe)):
        changed = [id_ for id_ in choice if choice[id_] != choices[id_]]
        early = [id_ in changed for id_ in choice]
        ranked.append(((keep in changed, len(changed), early, order), choice))
    ranked.sort(key=lambda pair: pair[0])
    return [choice for _, choice in ranked[:limit]]


def cell_choices(recipe: Recipe) -> Iterator[dict[str, str]]:
    """Every combination of the dimensions that has a cell, in the order of the page."""
    groups = [[option.id for option in dimension.options] for dimension in recipe.dimensions]
    for combination in itertools.product(*groups):
        choice = dict(zip((d.id for d in recipe.dimensions), combination, strict=True))
        if cell_for(recipe, choice) is not None:
            yield choice


def reachable(recipe: Recipe) -> Iterator[dict[str, str]]:
    """Every combination of dimensions and layers that has a command, values left out."""
    for choice in cell_choices(recipe):
        cell = cell_for(recipe, choice)
        assert cell is not None
        yield from _layered(recipe, choice, list(cell.flags), 0)


def _layered(
    recipe: Recipe, choice: dict[str, str], flags: list[str], index: int
) -> Iterator[dict[str, str]]:
    if index == len(recipe.layers):
        yield dict(choice)
        return
    layer = recipe.layers[index]
    for option in layer.options:
        if blocked(option, choice, flags) is None:
            after = apply(flags, option)
            yield from _layered(recipe, {**choice, layer.id: option.id}, after, index + 1)


def compose(
    recipe: Recipe, cell: Cell, choices: Mapping[str, str]
) -> tuple[list[str], dict[str, str], list[str], list[Need], dict[str, str]]:
    """Flags, environment, notes, needs, and by layer the reasons why its option is disabled."""
    flags = list(cell.flags)
    env = dict(entry.split("=", 1) for entry in cell.env)
    notes, needs = list(cell.notes), list(cell.needs)
    reasons: dict[str, str] = {}
    for layer in recipe.layers:
        option = chosen(layer, choices)
        if (reason := blocked(option, choices, flags)) is not None:
            reasons[layer.id] = f"{layer.title}, {option.label}: {reason}"
        flags = apply(flags, option)
        env |= dict(entry.split("=", 1) for entry in option.env)
        notes += [option.note] if option.note else []
        needs += option.needs
    return flags, env, notes, needs, reasons


def chosen(layer: Layer, choices: Mapping[str, str]) -> LayerOption:
    """The option of a layer that choices name."""
    return next(option for option in layer.options if option.id == choices[layer.id])


def blocked(option: LayerOption, choices: Mapping[str, str], flags: Sequence[str]) -> str | None:
    """The reason why an option cannot be chosen; None where it can."""
    if not option.disable:
        return None
    names = {flag.split(" ", 1)[0] for flag in flags}
    for rule in option.disable:
        if matches(rule.when, choices) and names.issuperset(rule.flags):
            return rule.because
    return None


def apply(flags: Sequence[str], option: LayerOption) -> list[str]:
    """Flags after an option: its own stand where the first one that it strips stood."""
    if not option.strip:
        return [*flags, *option.flags]
    kept: list[str] = []
    place: int | None = None
    for flag in flags:
        if any(covers(pattern, flag) for pattern in option.strip):
            place = len(kept) if place is None else place
        else:
            kept.append(flag)
    place = len(kept) if place is None else place
    return kept[:place] + list(option.flags) + kept[place:]


def covers(pattern: str, flag: str) -> bool:
    """Whether a strip pattern, a flag's name or a beginning with `*`, takes a flag away."""
    name = flag.split(" ", 1)[0]
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def select(entries: Sequence[Matched], choices: Mapping[str, str]) -> Matched | None:
    """The entry with the most specific match; of equals the first."""
    found = [entry for entry in entries if matches(entry.match, choices)]
    return max(found, key=lambda entry: len(entry.match), default=None)


def fill(text: str, blanks: Mapping[str, str]) -> str:
    """Text with every `{{id}}` replaced."""
    for id_, value in blanks.items():
        text = text.replace("{{" + id_ + "}}", value)
    return text


def words_of(flags: Sequence[str], blanks: Mapping[str, str]) -> list[str]:
    """Words of `--name value` entries; a value may have spaces of its own."""
    return [fill(word, blanks) for flag in flags for word in flag.split(" ", 1)]


def parts(
    kitchen: Kitchen, cell: Cell, choices: Mapping[str, str]
) -> tuple[str, list[str], dict[str, str]]:
    """What a fingerprint is taken of: image, flags and environment, blanks unfilled."""
    flags, env, *_ = compose(kitchen.recipe, cell, choices)
    image = select(kitchen.recipe.images, choices)
    assert image is not None  # `structure.problems` proved that every cell has one
    return image.reference, flags, env


def fingerprint(image: str, flags: Sequence[str], env: Mapping[str, str]) -> str:
    """16 hex digits of sha256 over image, flags in order and environment by name."""
    text = json.dumps([image, list(flags), sorted(env.items())], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
