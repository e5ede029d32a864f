"""Values that an operator gives to a deployment's variables: `K=V` words and `.env` files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from slipway.errors import UsageError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def parse_settings(words: Iterable[str]) -> dict[str, str]:
    """Read `K=V` words; the last of a name counts.

    Raises:
        UsageError: a word has no `=`, or its name is none.
    """
    settings = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not _NAME.fullmatch(name):
            raise UsageError(f"{word!r} is no setting", "write --env NAME=VALUE")
        settings[name] = value
    return settings


def read_env(text: str) -> dict[str, str]:
    """Names and values of an `.env` file as `write_env` writes it."""
    lines = (line.strip() for line in text.splitlines())
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {name: _unquoted(value) for name, _, value in pairs}


def write_env(settings: Mapping[str, str]) -> str:
    """An `.env` file that Compose reads to the same values.

    Raises:
        UsageError: a value has a line end, or a backslash where Compose would misread it.
    """
    return "".join(f"{name}={_quoted(value)}\n" for name, value in settings.items())


def _quoted(value: str) -> str:
    """Single quotes keep everything as it is; only a quote in them is written `\\'`."""
    if re.fullmatch(r"[A-Za-z0-9_./:@%+,=-]*", value):
        return value
    if re.search(r"\\(?:'|$)|[\r\n]", value):
        raise UsageError(
            f"{value!r} cannot be written to an .env file",
            "leave out line ends, and a backslash before a quote or at the end",
        )
    return "'" + value.replace("'", "\\'") + "'"


def _unquoted(value: str) -> str:
    value = value.strip()
    if len(value) >= 2 and value[0] == value[-1] == "'":
        return value[1:-1].replace("\\'", "'")
    if len(value) >= 2 and value[0] == value[-1] == '"':
        return value[1:-1]
    return value
