"""Flags as typed dataclass fields: one table from which parser, help and docs come."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, NoReturn, TypeVar

from keel.errors import ArgumentError

T = TypeVar("T")
_KEY = "keel.flag"


@dataclass(frozen=True)
class Flag:
    """One flag of a command.

    Args:
        names: spellings, the first one is canonical (`--tp-size`).
        convert: text to value; raises ValueError with a sentence when the text cannot be meant.
        help: one sentence.
        part: the part of the engine that it steers.
        choices: allowed values, or empty.
        switch: takes no value; a switch that defaults to true has a `--no-` form.
        many: takes one or more values and may be given again; the field is a tuple with one
            tuple of values for each time it was given.
    """

    names: tuple[str, ...]
    convert: Callable[[str], Any]
    help: str
    part: str
    choices: tuple[str, ...] = ()
    switch: bool = False
    many: bool = False
    field: str = ""
    default: Any = None
    required: bool = False

    @property
    def name(self) -> str:
        """The canonical spelling."""
        return self.names[0]


def flag(
    *names: str,
    help: str,
    part: str,
    default: Any = MISSING,
    convert: Callable[[str], Any] = str,
    choices: tuple[str, ...] = (),
    switch: bool = False,
    many: bool = False,
) -> Any:
    """A dataclass field that is also a flag; without a default the flag is required."""
    entry = Flag(names, convert, help, part, choices, switch, many)
    if default is MISSING:
        return field(metadata={_KEY: entry})
    return field(default=default, metadata={_KEY: entry})


def flags_of(table: type[Any]) -> tuple[Flag, ...]:
    """The flags of a dataclass whose fields were made by `flag`, in order."""
    found = []
    for item in fields(table):
        entry: Flag = item.metadata[_KEY]
        required = item.default is MISSING
        found.append(
            Flag(
                entry.names,
                entry.convert,
                entry.help,
                entry.part,
                entry.choices,
                entry.switch,
                entry.many,
                field=item.name,
                default=None if required else item.default,
                required=required,
            )
        )
    return tuple(found)


class _Parser(argparse.ArgumentParser):
    """An argument parser that raises instead of printing usage and leaving."""

    def error(self, message: str) -> NoReturn:
        raise ArgumentError(message, f"`{self.prog} --help` lists the flags")


def parser_of(table: type[Any], prog: str, description: str) -> argparse.ArgumentParser:
    """The argparse parser of a flag table, grouped by engine part."""
    parser = _Parser(prog=prog, description=description, allow_abbrev=False)
    groups: dict[str, Any] = {}
    for entry in flags_of(table):
        group = groups.get(entry.part)
        if group is None:
            group = groups[entry.part] = parser.add_argument_group(entry.part)
        options: dict[str, Any] = {"dest": entry.field, "help": entry.help.replace("%", "%%")}
        if entry.required:
            options["required"] = True
        else:
            options["default"] = entry.default
            if entry.default not in (None, False, ()):
                options["help"] += f" (default: {entry.default})"
        if entry.switch:
            options["action"] = argparse.BooleanOptionalAction if entry.default else "store_true"
        else:
            options["type"] = _named(entry)
            options["metavar"] = "|".join(entry.choices) or entry.field.upper()
        if entry.many:
            options |= {"action": "append", "nargs": "+", "default": None}
        group.add_argument(*entry.names, **options)
    return parser


def parse_table(table: type[T], argv: Sequence[str], prog: str, description: str) -> T:
    """Parse a command line into an instance of the table.

    Raises:
        ArgumentError: a flag is unknown, lacks its value, or has one that cannot be meant.
    """
    parser = parser_of(table, prog, description)
    known, unknown = parser.parse_known_args(list(argv))
    if unknown:
        raise ArgumentError(
            f"{prog} has no argument {unknown[0]!r}", _hint(table, prog, unknown[0])
        )
    values = vars(known)
    for entry in flags_of(table):
        if entry.many:
            given = values[entry.field]
            values[entry.field] = entry.default if given is None else tuple(map(tuple, given))
    return table(**values)


def _hint(table: type[Any], prog: str, word: str) -> str:
    from difflib import get_close_matches

    names = [name for entry in flags_of(table) for name in entry.names]
    near = get_close_matches(word.split("=")[0], names, n=1)
    return f"did you mean {near[0]}?" if near else f"`{prog} --help` lists the flags"


def _named(entry: Flag) -> Callable[[str], Any]:
    """Wrap a converter so that its failure names the value that was wrong and those right."""

    def convert(text: str) -> Any:
        if entry.choices and text not in entry.choices:
            raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(entry.choices)}")
        try:
            return entry.convert(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def whole(low: int, high: int | None = None) -> Callable[[str], int]:
    """A converter to a whole number of a range, both ends allowed."""

    def convert(text: str) -> int:
        limits = f"at least {low}" if high is None else f"from {low} to {high}"
        try:
            value = int(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a whole number {limits}") from None
        if value < low or (high is not None and value > high):
            raise ValueError(f"{value} is not {limits}")
        return value

    return convert


def share(text: str) -> float:
    """A number from 0 to 1."""
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number from 0 to 1") from None
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{text} is not from 0 to 1")
    return value


def json_object(text: str) -> dict[str, Any]:
    """A converter to a JSON object."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{text!r} is not JSON: {error.msg} at column {error.colno}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{text!r} is JSON but no object")
    return value
