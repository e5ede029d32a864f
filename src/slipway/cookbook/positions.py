"""Where each key and item of a TOML file stands, so that an error can name its line.

`tomllib` gives values without positions. This scan runs over text that `tomllib` has accepted and
therefore only walks the structure; it never judges it.
"""

from __future__ import annotations

import re

Path = tuple[str | int, ...]

_SPACE = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_BARE_VALUE = re.compile(r"[^,\]}\n#]*")
_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}'  # multi-line basic; up to two quotes may end the text
    r"|'''.*?'{3,5}"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'",
    re.DOTALL,
)


def positions(text: str) -> dict[Path, int]:
    """Line numbers (from 1) by path, for example `("cells", 3, "flags", 0)`."""
    return _Scan(text).run()


def line_of(found: dict[Path, int], path: Path) -> int:
    """The line of a path, or of its nearest parent that the file has; 1 where it has none."""
    for end in range(len(path), 0, -1):
        if path[:end] in found:
            return found[path[:end]]
    return 1


class _Scan:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.found: dict[Path, int] = {}
        self.counts: dict[Path, int] = {}  # tables of an array of tables, by its path

    def run(self) -> dict[Path, int]:
        table: Path = ()
        while self._skip() < len(self.text):
            start = self.at
            if self.text.startswith("[", start):
                many = self.text.startswith("[[", start)
                self.at += 2 if many else 1
                table = self._header(self._key(), many, start)
                self.at = self.text.index("]]" if many else "]", self.at) + (2 if many else 1)
            else:
                self._pair(table)
        return self.found

    def _skip(self) -> int:
        match = _SPACE.match(self.text, self.at)
        assert match is not None  # the pattern matches the empty string
        self.at = match.end()
        return self.at

    def _note(self, path: Path, start: int) -> None:
        self.found.setdefault(path, self.text.count("\n", 0, start) + 1)

    def _header(self, keys: tuple[str, ...], many: bool, start: int) -> Path:
        path: Path = ()
        for index, key in enumerate(keys):
            path = (*path, key)
            last = index == len(keys) - 1
            if last and many:
                self._note(path, start)
                self.counts[path] = self.counts.get(path, 0) + 1
            if path in self.counts:
                path = (*path, self.counts[path] - 1)
        self._note(path, start)
        return path

    def _key(self) -> tuple[str, ...]:
        keys = []
        while True:
            self._skip()
            match = _STRING.match(self.text, self.at) or _BARE_KEY.match(self.text, self.at)
            assert match is not None  # tomllib accepted the key
            word = match.group()
            keys.append(word[1:-1] if word[0] in "\"'" else word)
            self.at = match.end()
            self._skip()
            if not self.text.startswith(".", self.at):
                return tuple(keys)
            self.at += 1

    def _pair(self, table: Path) -> None:
        self._skip()
        start = self.at
        keys = self._key()
        for end in range(1, len(keys) + 1):
            self._note((*table, *keys[:end]), start)
        self.at += 1  # the equals sign
        self._skip()
        self._value((*table, *keys))

    def _value(self, path: Path) -> None:
        opening = self.text[self.at]
        if opening in "[{":
            closing = "]" if opening == "[" else "}"
            self.at += 1
            index = 0
            while not self.text.startswith(closing, self._skip()):
                if opening == "[":
                    self._note((*path, index), self.at)
                    self._value((*path, index))
                else:
                    self._pair(path)
                index += 1
                if self.text.startswith(",", self._skip()):
                    self.at += 1
            self.at += 1
        else:
            match = _STRING.match(self.text, self.at) or _BARE_VALUE.match(self.text, self.at)
            assert match is not None  # _BARE_VALUE matches the empty string
            self.at = match.end()
