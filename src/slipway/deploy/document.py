"""YAML as plain values with line numbers and comments, within bounds: a hostile file costs no time.

Built from the parser's events rather than by its constructor, which copies aliases without limit
and knows no lines. Scalars are resolved as YAML 1.2's core schema has them; merge keys are
followed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slipway.errors import ConfigError

# The largest Compose file known has 40 kB; parsing takes about a microsecond a byte.
MAX_BYTES = 512 * 1024
# Values after every alias is written out.
MAX_VALUES = 50_000
MAX_DEPTH = 48
# Of a comment's line, in characters.
MAX_COMMENT = 500

_INT = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})|0o[0-7]{1,20}|0x[0-9a-fA-F]{1,16}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]{1,40}|[0-9]{1,40}(\.[0-9]{0,40})?)([eE][-+]?[0-9]{1,3})?")
_WORDS: dict[str, object] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


@dataclass(frozen=True)
class Comment:
    """A comment that has its line to itself."""

    line: int
    text: str


@dataclass(frozen=True)
class Document:
    """A YAML file: its value, the lines of its first two levels of keys, and its comments."""

    value: Any
    lines: dict[tuple[str, ...], int] = field(default_factory=dict)
    comments: tuple[Comment, ...] = ()


def read_text(path: Path) -> str:
    """The text of a file that a person wrote.

    Raises:
        ConfigError: it is missing, no file, too large, or no text.
    """
    try:
        if not path.is_file():
            what = "is not a file" if path.exists() else "does not exist"
            raise ConfigError(f"{path} {what}", "give the path of a Compose file")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{path} cannot be read: {reason}") from None
    if len(content) > MAX_BYTES:
        raise ConfigError(
            f"{path} is larger than {MAX_BYTES // 1024} kB: no Compose file is",
            "give the path of a Compose file",
        )
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8: {error}") from None


def parse_document(text: str, path: Path) -> Document:
    """YAML text that came from `path`.

    Raises:
        ConfigError: it is not YAML, or not within bounds.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    builder = _Builder(path)
    try:
        value = builder.build(YAML(typ="safe", pure=True).parse(text))
    except YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {_said(error)}") from None
    except (ValueError, AssertionError, IndexError, KeyError, TypeError, RecursionError) as error:
        # What ruamel's scanner raises over some malformed input.
        raise ConfigError(f"{path}: not YAML: {type(error).__name__} {error}") from None
    return Document(value, builder.lines, tuple(_comments(text, builder.blocks)))


def _said(error: Exception) -> str:
    """The message without quoted pieces of the file at length."""
    return " ".join(str(error).split())[:400]


def _comments(text: str, blocks: list[tuple[int, int]]) -> Iterator[Comment]:
    inside = {line for first, last in blocks for line in range(first + 1, last)}
    for number, line in enumerate(text.splitlines()):
        stripped = line.strip()
        if stripped.startswith("#") and number not in inside:
            yield Comment(number + 1, stripped.lstrip("#").strip()[:MAX_COMMENT])


@dataclass
class _Open:
    """A list or table that is being read; `key` is a table's key that waits for its value."""

    value: Any
    anchor: str | None
    size: int = 1
    key: str | None = None
    waits: bool = False
    merges: list[Any] = field(default_factory=list)


class _Builder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: dict[tuple[str, ...], int] = {}
        self.blocks: list[tuple[int, int]] = []
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._pending: set[str] = set()
        self._stack: list[_Open] = []
        self._root: Any = None
        self._documents = 0

    def build(self, events: Any) -> Any:
        for event in events:
            kind = type(event).__name__
            if kind == "DocumentStartEvent":
                self._documents += 1
                if self._documents > 1:
                    raise self._wrong(event, "a second document", "keep one document in a file")
            elif kind == "ScalarEvent":
                first, last = event.start_mark.line, event.end_mark.line
                if last > first + 1 and event.style in ("|", ">"):
                    self.blocks.append((first, last))
                self._add(event, self._scalar(event), 1)
            elif kind == "AliasEvent":
                self._alias(event)
            elif kind in ("MappingStartEvent", "SequenceStartEvent"):
                self._start(event, {} if kind == "MappingStartEvent" else [])
            elif kind in ("MappingEndEvent", "SequenceEndEvent"):
                self._end(event)
        return self._root

    def _wrong(self, event: Any, what: str, fix: str = "") -> ConfigError:
        return ConfigError(f"{self.path}:{event.start_mark.line + 1}: not YAML: {what}", fix)

    def _scalar(self, event: Any) -> Any:
        tag = str(event.tag) if getattr(event, "tag", None) else ""
        if tag.endswith("reset"):
            return None
        text = event.value
        if event.style is not None or tag.endswith("str"):
            return text
        if text in _WORDS:
            return _WORDS[text]
        if _INT.fullmatch(text):
            return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
        return float(text) if _FLOAT.fullmatch(text) else text

    def _alias(self, event: Any) -> None:
        name = str(event.anchor)
        if name in self._pending:
            raise self._wrong(event, f"*{name} contains itself")
        if name not in self._anchors:
            raise self._wrong(event, f"*{name} names no anchor above it")
        value, size = self._anchors[name]
        self._add(event, value, size)

    def _start(self, event: Any, value: Any) -> None:
        if len(self._stack) >= MAX_DEPTH:
            raise self._wrong(event, f"nested deeper than {MAX_DEPTH} levels")
        anchor = str(event.anchor) if event.anchor else None
        if anchor:
            self._pending.add(anchor)
        self._stack.append(_Open(value, anchor))

    def _end(self, event: Any) -> None:
        done = self._stack.pop()
        if done.anchor:
            self._pending.discard(done.anchor)
            self._anchors[done.anchor] = (done.value, done.size)
        for merged in done.merges:
            for one in merged if isinstance(merged, list) else [merged]:
                if not isinstance(one, dict):
                    raise self._wrong(event, "<< takes a table or a list of tables")
                for key, value in one.items():
                    done.value.setdefault(key, value)
        self._add(event, done.value, done.size, closing=True)

    def _add(self, event: Any, value: Any, size: int, *, closing: bool = False) -> None:
        if not closing and getattr(event, "anchor", None) and type(event).__name__ != "AliasEvent":
            self._anchors[str(event.anchor)] = (value, size)
        if not self._stack:
            self._root = value
            return
        into = self._stack[-1]
        into.size += size
        if into.size > MAX_VALUES:
            raise self._wrong(event, f"more than {MAX_VALUES} values once aliases are written out")
        if isinstance(into.value, list):
            into.value.append(value)
        elif not into.waits:
            if isinstance(value, dict | list):
                raise self._wrong(event, "a table or a list as a key")
            into.key, into.waits = _key(value), True
            if into.key != "<<" and into.key in into.value:
                raise self._wrong(event, f"key {into.key!r} is there twice")
            if len(self._stack) <= 2:
                above = tuple(open_.key or "" for open_ in self._stack[:-1])
                self.lines[(*above, into.key)] = event.start_mark.line + 1
        else:
            into.waits = False
            if into.key == "<<":
                into.merges.append(value)
            else:
                into.value[into.key] = value


def _key(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)
