"""Finds the engine in a container's command, and asks the engine's own parser about its flags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from keel.args import FLAGS, ArgumentError, parse

# `--port` of an engine that is not told one; SGLang's is the same.
DEFAULT_PORT = next(int(flag.default) for flag in FLAGS if "--port" in flag.names)


@dataclass(frozen=True)
class EngineCommand:
    """A command that starts an engine: whose it is, and the words after `serve`."""

    program: str
    flags: tuple[str, ...]

    def value(self, *names: str) -> str | None:
        """The value of a flag under any of its names, as one word or two; the last one counts."""
        found = None
        for index, word in enumerate(self.flags):
            name, equals, value = word.partition("=")
            if name in names:
                if equals:
                    found = value
                elif index + 1 < len(self.flags):
                    found = self.flags[index + 1]
        return found

    @property
    def port(self) -> int | None:
        """Where it listens; None where the flag's value is no number."""
        text = self.value("--port")
        if text is None:
            return DEFAULT_PORT
        return int(text) if text.isdigit() else None

    @property
    def model(self) -> str:
        """What it loads, "" where it does not say."""
        return self.value("--model-path", "--model") or ""


def engine_of(words: Sequence[str]) -> EngineCommand | None:
    """The engine that a container's words start, or None where they start none.

    Images of this project have `keel` as their entry point, so that word may be missing.
    """
    for program, head in (("keel", ()), ("keel", ("keel",)), ("sglang", ("sglang",))):
        start = (*head, "serve")
        if tuple(words[: len(start)]) == start:
            return EngineCommand(program, tuple(words[len(start) :]))
    return None


def complaint(command: EngineCommand) -> tuple[str, str] | None:
    """What the engine's own parser says against the flags, and its remedy; None where nothing.

    Flags of other engines than `keel` are not judged.
    """
    if command.program != "keel":
        return None
    try:
        parse(command.flags)
    except ArgumentError as error:
        return error.what, error.remedy
    return None
