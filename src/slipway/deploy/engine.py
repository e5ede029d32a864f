"""Finds the engine or the router in a container's command, however the command is written."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import PurePosixPath

from keel.args import FLAGS, ArgumentError, parse
from keel.args.knowledge import Launch, read_launch

# `--port` of an engine that is not told one; SGLang's is the same.
DEFAULT_PORT = next(int(flag.default) for flag in FLAGS if "--port" in flag.names)

# Of a shell's script: characters and commands that are read.
MAX_SCRIPT, MAX_COMMANDS = 32_768, 256
_SHELLS = frozenset(("sh", "bash", "ash", "dash", "zsh"))
# What may stand before the engine in its own command and hands its words on.
_WRAPPERS = frozenset(
    ("exec", "env", "nohup", "nice", "numactl", "taskset", "stdbuf", "tini", "dumb-init", "time",
     "timeout", "uv", "run", "sudo", "nsys", "catchsegv", "python", "python3")
)  # fmt: skip
_KEYWORDS = frozenset(("then", "do", "else", "if", "while", "!", "{", "}"))
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?[-=]([^{}]*))?\})")
# The words with which each program begins, and whose it is.
_STARTS = (
    ("sglang", ("sglang", "serve")),
    ("sglang", ("-m", "sglang.launch_server")),
    ("keel", ("keel", "serve")),
    ("keel", ("-m", "keel", "serve")),
)
_ROUTERS = (
    ("keel", ("keel", "router")),
    ("keel", ("-m", "keel", "router")),
    ("sglang", ("-m", "sglang_router.launch_router")),
    ("sglang", ("sglang-router", "launch")),
    ("sglang", ("smg", "launch")),
)


@dataclass(frozen=True)
class EngineCommand:
    """A command that starts an engine: whose it is, the words after `serve`, what it sets first.

    Attributes:
        env: variables that a shell sets before it starts the engine.
    """

    program: str
    flags: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)

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
        return int(text) if re.fullmatch(r"[0-9]{1,5}", text) else None

    @property
    def model(self) -> str:
        """What it loads, "" where it does not say."""
        return self.value("--model-path", "--model") or ""

    def launch(self, environment: Mapping[str, str]) -> Launch:
        """Its flags and environment as values."""
        return read_launch(self.program, self.flags, {**environment, **self.env})


@dataclass(frozen=True)
class RouterCommand(EngineCommand):
    """A command that starts a router: whose it is, and the words after it."""

    def pairs(self, name: str) -> list[tuple[str, ...]]:
        """The words after each time that a flag is given."""
        found: list[tuple[str, ...]] = []
        for index, word in enumerate(self.flags):
            if word == name:
                end = index + 1
                while end < len(self.flags) and not self.flags[end].startswith("--"):
                    end += 1
                found.append(self.flags[index + 1 : end])
        return found


def engine_of(
    words: Sequence[str], environment: Mapping[str, str] | None = None
) -> EngineCommand | None:
    """The engine that a container's words start, or None where they start none.

    Images of this project have `keel` as their entry point, so that word may be missing. A shell's
    script is read for the command that starts an engine, and for what it sets before.
    """
    for command, env in _commands(tuple(words), environment or {}):
        if command[:1] == ("serve",):
            return EngineCommand("keel", command[1:], env)
        if found := _begun(command, _STARTS):
            return EngineCommand(*found, env)
    return None


def router_of(
    words: Sequence[str], environment: Mapping[str, str] | None = None
) -> RouterCommand | None:
    """The router that a container's words start, or None."""
    for command, env in _commands(tuple(words), environment or {}):
        if command[:1] == ("router",):
            return RouterCommand("keel", command[1:], env)
        if found := _begun(command, _ROUTERS):
            return RouterCommand(*found, env)
    return None


def split_script(words: Sequence[str]) -> bool:
    """Whether a shell gets its script in pieces: it runs the first word and drops the flags."""
    place = _script_place(words)
    if place is None or place + 1 >= len(words):
        return False
    script = words[place]
    return not re.search(r"\s", script.strip()) and (
        PurePosixPath(script).name in ("sglang", "keel", "python", "python3")
    )


def _begun(
    command: tuple[str, ...], starts: Sequence[tuple[str, tuple[str, ...]]]
) -> tuple[str, tuple[str, ...]] | None:
    first = PurePosixPath(command[0]).name if command else ""
    for index in range(min(len(command), 12)):
        if index and not (first in _WRAPPERS or re.fullmatch(r"python3?(\.\d+)?", first)):
            return None
        name = PurePosixPath(command[index]).name
        for program, start in starts:
            if name == start[0] and command[index + 1 : index + len(start)] == start[1:]:
                return program, command[index + len(start) :]
    return None


def _script_place(words: Sequence[str]) -> int | None:
    """Where a shell's script stands among its words; None where no shell is started with one."""
    if not words or PurePosixPath(words[0]).name not in _SHELLS:
        return None
    for index, word in enumerate(words[1:8], 1):
        if re.fullmatch(r"-[a-z]*c[a-z]*", word):
            return index + 1
        if not word.startswith("-"):
            return None
    return None


def _commands(
    words: tuple[str, ...], environment: Mapping[str, str], depth: int = 0
) -> Iterator[tuple[tuple[str, ...], Mapping[str, str]]]:
    """The commands that a container's words run, each with the variables set before it."""
    place = _script_place(words)
    if place is None:
        env: dict[str, str] = {}
        start = 1 if words[:1] == ("env",) else 0
        while start < len(words) and (match := _ASSIGNMENT.fullmatch(words[start])):
            env[match[1]] = match[2]
            start += 1
        command = tuple(word for word in words[start:] if word.strip())
        if command:
            yield command, env
        return
    if place >= len(words) or depth > 3 or len(words[place]) > MAX_SCRIPT:
        return
    known = dict(environment)
    set_here: dict[str, str] = {}
    for command in islice(_script_commands(words[place]), MAX_COMMANDS):
        expanded = tuple(_expanded(word, known) for word in command)
        if expanded[0] in ("export", "declare") or all(
            _ASSIGNMENT.fullmatch(word) for word in expanded
        ):
            for word in expanded:
                if match := _ASSIGNMENT.fullmatch(word):
                    known[match[1]] = set_here[match[1]] = match[2]
            continue
        for inner, own in _commands(expanded, known, depth + 1):
            yield inner, {**set_here, **own}


def _script_commands(script: str) -> Iterator[tuple[str, ...]]:
    """The simple commands of a shell script, redirections left out. A broken one has none."""
    joined = script.replace("\\\r\n", " ").replace("\\\n", " ")
    lexer = shlex.shlex(joined, posix=True, punctuation_chars=";&|()\n")
    lexer.whitespace, lexer.whitespace_split = " \t\r", True
    try:
        tokens = list(lexer)
    except ValueError:
        return
    command: list[str] = []
    redirects = False
    for token in [*tokens, ";"]:
        if set(token) <= set(";&|()\n"):
            if command:
                yield tuple(command)
            command, redirects = [], False
        elif token in _KEYWORDS and not command:
            continue
        elif redirects or re.match(r"\d*[<>]", token):
            redirects = bool(re.fullmatch(r"\d*[<>]+", token)) and not redirects
        else:
            command.append(token)


def _expanded(word: str, known: Mapping[str, str]) -> str:
    """A word with the shell's variables replaced by what is known of them."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        return known.get(name) or (match[3] if match[3] is not None else f"<{name}>")

    return _VARIABLE.sub(value, word)


def complaint(command: EngineCommand) -> tuple[str, str] | None:
    """What the engine's own parser says against the flags, and its remedy; None where nothing.

    Of another engine's command only what no version of it could take is said.
    """
    if command.program != "keel":
        complaints = command.launch({}).complaints
        return (complaints[0].what, complaints[0].fix) if complaints else None
    try:
        parse(command.flags)
    except ArgumentError as error:
        return error.what, error.remedy
    return None
