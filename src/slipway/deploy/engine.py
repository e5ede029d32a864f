"""Finds the engine in a container's command, and asks the engine's own parser about its flags."""

from __future__ import annotations

from collections.abc import Sequence


def engine_flags(words: Sequence[str]) -> tuple[str, ...] | None:
    """The words after `serve`, or None where the command starts no engine.

    Images of this project have `keel` as their entry point, so the word before may be missing.
    """
    for start in ((), ("keel",), ("sglang",)):
        head = (*start, "serve")
        if tuple(words[: len(head)]) == head:
            return tuple(words[len(head) :])
    return None


def value_of(flags: Sequence[str], *names: str) -> str | None:
    """The value of a flag under any of its names, as one word or two; the last one counts."""
    found = None
    for index, word in enumerate(flags):
        name, equals, value = word.partition("=")
        if name in names:
            if equals:
                found = value
            elif index + 1 < len(flags):
                found = flags[index + 1]
    return found
