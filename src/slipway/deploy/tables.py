"""Typed reading of a TOML file, in which every complaint names the file, the table and the key."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from slipway.errors import ConfigError

_NONE = object()


class Table:
    """One TOML table that is read key by key; `close` refuses the keys that nobody asked for."""

    def __init__(self, path: Path, name: str, data: Mapping[str, Any]) -> None:
        self.path = path
        self.name = name
        self.data = data
        self._asked: set[str] = set()

    def wrong(self, key: str, why: str, remedy: str = "") -> ConfigError:
        """The complaint about one key, or about the table itself where `key` is ""."""
        where = f"[{self.name}]" if self.name else "the top of the file"
        return ConfigError(f"{self.path}: {where}{f' {key}' if key else ''}: {why}", remedy)

    def _take(self, key: str, kind: type | tuple[type, ...], says: str, default: object) -> Any:
        self._asked.add(key)
        value = self.data.get(key, default)
        if value is _NONE:
            raise self.wrong(key, f"is missing; it must be {says}")
        if value is not default and (
            not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)
        ):
            raise self.wrong(key, f"must be {says}, not {value!r}")
        return value

    def text(self, key: str, default: str | object = _NONE) -> str:
        """A string."""
        value: str = self._take(key, str, "a string", default)
        return value

    def optional_text(self, key: str) -> str | None:
        """A string or nothing."""
        return self.text(key) if key in self.data else None

    def integer(self, key: str, default: int | object = _NONE, *, minimum: int = 0) -> int:
        """A whole number of at least `minimum`."""
        value: int = self._take(key, int, "a whole number", default)
        if value < minimum:
            raise self.wrong(key, f"must be at least {minimum}, not {value}")
        return value

    def port(self, key: str) -> int:
        """A TCP port."""
        value = self.integer(key, minimum=1)
        if value > 65535:
            raise self.wrong(key, f"must be a port up to 65535, not {value}")
        return value

    def boolean(self, key: str, default: bool) -> bool:
        """True or false."""
        value: bool = self._take(key, bool, "true or false", default)
        return value

    def choice(self, key: str, allowed: tuple[str, ...], default: str | object = _NONE) -> str:
        """One of a few words."""
        value = self.text(key, default)
        if value not in allowed:
            raise self.wrong(key, f"must be one of {', '.join(allowed)}, not {value!r}")
        return value

    def items(self, key: str, kind: type, says: str) -> tuple[Any, ...]:
        """A list whose members are all of one kind; empty where it is missing."""
        values = self._take(key, list, f"a list of {says}", [])
        for value in values:
            if not isinstance(value, kind) or isinstance(value, bool):
                raise self.wrong(key, f"must be a list of {says}; {value!r} is not one")
        return tuple(values)

    def raw(self, key: str) -> dict[str, Any]:
        """A table of free keys; empty where it is missing."""
        value: dict[str, Any] = self._take(key, dict, "a table", {})
        return value

    def table(self, key: str) -> Table:
        """A table of known keys; empty where it is missing."""
        return Table(self.path, f"{self.name}.{key}" if self.name else key, self.raw(key))

    def tables(self, key: str) -> Iterator[tuple[str, Table]]:
        """The tables below `key`, with their names, in the order of the file.

        Each is closed once the body of the loop has read it.
        """
        parent = self.table(key)
        for name in parent.data:
            table = parent.table(name)
            yield name, table
            table.close()

    def close(self) -> None:
        """Refuse keys that were not asked for.

        Raises:
            ConfigError: with the nearest known key as its remedy.
        """
        import difflib

        for key in self.data:
            if key not in self._asked:
                near = difflib.get_close_matches(key, self._asked, 1)
                known = ", ".join(sorted(self._asked))
                remedy = f"did you mean {near[0]}?" if near else f"known: {known}"
                raise self.wrong(key, "is not known here", remedy)


def read_toml(path: Path) -> Table:
    """The top table of a TOML file.

    Raises:
        ConfigError: the file is missing or is not TOML; the message has line and column.
    """
    try:
        with path.open("rb") as file:
            return Table(path, "", tomllib.load(file))
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from None
