"""Tokens to text while they arrive: never half a character, nothing twice."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

from tokenizers import decoders

from keel.tokenizer.tokenizer import Tokenizer


class Detokenizer(Protocol):
    """The text of one answer, as far as it is certain."""

    def add(self, ids: Sequence[int]) -> str:
        """Text that these tokens make certain; empty while a character is incomplete."""

    def finish(self) -> str:
        """What is left when no more tokens come; an incomplete character becomes U+FFFD."""


def make_detokenizer(tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> Detokenizer:
    """The exact one for byte-level vocabularies, the windowed one for all others."""
    if isinstance(tokenizer.backend.decoder, decoders.ByteLevel):
        return ByteLevelDetokenizer(tokenizer, skip_special_tokens)
    return WindowDetokenizer(tokenizer, skip_special_tokens)


def _byte_of_char() -> dict[str, int]:
    """GPT-2's table: each byte as one printable character (`bytes_to_unicode`)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in plain}
    rest = [byte for byte in range(256) if byte not in plain]
    return table | {chr(256 + index): byte for index, byte in enumerate(rest)}


_BYTE_OF_CHAR = _byte_of_char()


class ByteLevelDetokenizer:
    """Concatenates the tokens' bytes and decodes UTF-8 incrementally; equals `decode` of all."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._backend = tokenizer.backend
        self._skip = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, ids: Sequence[int]) -> str:
        return self._decoder.decode(b"".join(self._bytes(index) for index in ids))

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)

    def _bytes(self, index: int) -> bytes:
        token = None if index in self._skip else self._backend.id_to_token(index)
        if token is None:
            return b""
        try:
            return bytes([_BYTE_OF_CHAR[char] for char in token])
        except KeyError:  # an added token, stored as plain text
            return token.encode()


class WindowDetokenizer:
    """Decodes a window of recent tokens twice and emits the difference.

    The window begins at a token where the text was complete, so that decoders which look at
    neighbours (leading spaces, byte fallback) see what they need.
    """

    # UTF-8 has at most 4 bytes a character and a token at least one byte.
    _LONGEST = 8

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._ids: list[int] = []
        self._start = 0  # of the window
        self._read = 0  # tokens whose text was emitted

    def add(self, ids: Sequence[int]) -> str:
        self._ids.extend(ids)
        before, now = self._texts()
        held = len(self._ids) - self._read
        if len(now) <= len(before) or (now.endswith("�") and held < self._LONGEST):
            return ""
        self._start, self._read = self._read, len(self._ids)
        return now[len(before) :]

    def finish(self) -> str:
        before, now = self._texts()
        self._start = self._read = len(self._ids)
        return now[len(before) :]

    def _texts(self) -> tuple[str, str]:
        def decode(ids: list[int]) -> str:
            return self._tokenizer.decode(ids, skip_special_tokens=self._skip)

        return decode(self._ids[self._start : self._read]), decode(self._ids[self._start :])
