"""The nouns of a recipe: what a model's page is computed from. The schema of the TOML files."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

# Every named id must have one of the options; one id's options are alternatives.
Match = dict[str, str | tuple[str, ...]]


class Option(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """One value of a dimension."""

    id: str
    label: str
    note: str = ""


class Dimension(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """A question that every cell answers: hardware, quantisation, strategy, role, nodes."""

    id: str
    title: str
    default: str
    options: tuple[Option, ...]


class Need(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """The smallest version, or the earliest build date, with which something works, and why.

    Args:
        version: release as `0.5.20` or `0.5.13.post1`; "" where only the build date decides.
        build: date in a tag of a dated build, YYYYMMDD; "" where the version decides.
    """

    because: str
    version: str = ""
    build: str = ""


class Verified(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """A record that a command was run. Void as soon as its hash is no longer the command's.

    Args:
        choices: what differs from the recipe's defaults.
        how: what ran it; a file of this repository where there is one.
    """

    hash: str
    date: str
    hardware: str
    how: str
    choices: dict[str, str] = {}


class Cell(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """Flags and environment of one combination of the dimensions' options."""

    match: Match
    flags: tuple[str, ...]
    env: tuple[str, ...] = ()
    nodes: int = 1
    notes: tuple[str, ...] = ()
    needs: tuple[Need, ...] = ()


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"flags": "with"}):
    """A condition with its reason. All parts must hold.

    Args:
        when: options of dimensions and of layers declared before.
        flags: flags that the command has before the layer is applied (`with` in the file).
    """

    because: str
    when: Match = {}
    flags: tuple[str, ...] = ()


class LayerOption(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """What choosing an option does: take flags away, then put its own in their place."""

    id: str
    label: str
    strip: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    note: str = ""
    needs: tuple[Need, ...] = ()
    disable: tuple[Rule, ...] = ()


class Layer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """An overlay (beside the dimensions) or a feature card: changes a cell's command."""

    id: str
    title: str
    default: str
    options: tuple[LayerOption, ...]
    note: str = ""


class Image(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """The image of the combinations that `match` selects; the most specific match counts.

    Args:
        reference: with a tag; the tag's own version counts.
        version: of a tag that states none.
        floating: why a tag that can move, or states no version, is used; said to the reader.
    """

    match: Match
    reference: str
    because: str = ""
    version: str = ""
    floating: str = ""


class ModelName(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """The checkpoint of the combinations that `match` selects; the most specific counts."""

    match: Match
    name: str
    in_container: str = ""


class Value(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """A blank that the reader fills in; `{{id}}` in flags, environment and model."""

    id: str
    label: str
    default: str


class Companion(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """A further command that a deployment needs, for example the router before its engines."""

    title: str
    when: Match
    words: tuple[str, ...]
    note: str = ""


class Figure(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """A measured number, or several, of one configuration.

    Args:
        choices: what differs from the recipe's defaults.
        rows: (what, value, unit).
        source: a file of this repository, or where it was published.
    """

    title: str
    date: str
    hardware: str
    source: str
    rows: tuple[tuple[str, str, str], ...]
    choices: dict[str, str] = {}
    note: str = ""


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """A model's page as data."""

    title: str
    vendor: str
    summary: str
    engine: str
    status: str
    dimensions: tuple[Dimension, ...]
    cells: tuple[Cell, ...]
    images: tuple[Image, ...]
    models: tuple[ModelName, ...]
    facts: dict[str, str] = {}
    mounts: tuple[str, ...] = ()
    values: tuple[Value, ...] = ()
    unavailable: tuple[Rule, ...] = ()
    overlays: tuple[Layer, ...] = ()
    cards: tuple[Layer, ...] = ()
    companions: tuple[Companion, ...] = ()
    figures: tuple[Figure, ...] = ()
    verified: tuple[Verified, ...] = ()
    slug: str = ""

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Overlays, then cards: the order in which they are applied."""
        return self.overlays + self.cards


class Engine(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """How an engine is started, natively and in a container.

    Args:
        flags_from: `keel.args`, or the name of a list of known upstream flags.
        entry: the words before the flags; `container_entry` those after the image.
        tail: flags that every command ends with.
        multi_node: flags of a node when there are several.
        head: as `{{head}}`, the address on which the nodes meet.
    """

    title: str
    flags_from: str
    entry: tuple[str, ...]
    container_entry: tuple[str, ...]
    model_flag: str
    tail: tuple[str, ...]
    network: str
    values: tuple[Value, ...]
    multi_node: tuple[str, ...] = ()
    multi_node_values: tuple[Value, ...] = ()
    ipc: str = ""
    shm_size: str = ""
    mounts: tuple[str, ...] = ()
    pass_env: tuple[str, ...] = ()


class Hardware(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """One accelerator, or the processor.

    Args:
        maker: `cpu`, `nvidia` or `amd`; decides how a container gets at it.
        arch: as compilers name it.
        memory: GB of one device; 0 for a processor.
        image: the part of a tag that images for it must have, "" where tags do not say.
    """

    label: str
    maker: str
    arch: str
    memory: int
    image: str = ""


class Kitchen(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """Everything that `generate` needs to know of one recipe's surroundings."""

    recipe: Recipe
    engine: Engine
    hardware: dict[str, Hardware]


def options_of(value: str | tuple[str, ...]) -> tuple[str, ...]:
    """The alternatives of one entry of a match."""
    return (value,) if isinstance(value, str) else value


def matches(match: Match, choices: Mapping[str, str]) -> bool:
    """Whether choices have, for every id of a match, one of its options."""
    return all(choices.get(id_) in options_of(value) for id_, value in match.items())
