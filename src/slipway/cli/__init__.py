"""The `slipway` command: parses, calls, prints.

Each command group is a module of its own, imported when it is called: start-up time is part of the
product.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import NoReturn

import click

from slipway.errors import SlipwayError

# name -> (module, one line of help); the module has a click command named `command`.
GROUPS = {
    "image": ("slipway.cli.image", "Plan, build, push and look at images."),
    "deploy": ("slipway.cli.deploy", "Render, check, pack and start deployments."),
    "cookbook": ("slipway.cli.cookbook", "Launch commands for models, and the site of them."),
    "ci": ("slipway.cli.ci", "What workflows run around builds, and their lint."),
    "doctor": ("slipway.cli.doctor", "Say what is here, and what each thing is needed for."),
}


class LazyGroup(click.Group):
    """A group whose subcommands are imported only when one of them runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(GROUPS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in GROUPS:
            return None
        loaded: click.Command = importlib.import_module(GROUPS[cmd_name][0]).command
        return loaded

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in GROUPS.items()])


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from importlib.metadata import PackageNotFoundError, version

        try:
            found = version("slipway")
        except PackageNotFoundError:
            found = "0.1.0.dev0+guess"
        guess = " (a guess: no version tag was in reach when it was installed)"
        click.echo(f"slipway {found}{guess if '.dev' in found else ''}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version,
    help="Show the version and exit.",
)  # fmt: skip
def command() -> None:
    """Turn every push of an inference engine into images and deployments."""


def main() -> NoReturn:
    """Entry point: run a command, and turn its failure into a sentence and an exit code."""
    try:
        command(prog_name="slipway")
    except SlipwayError as error:
        _fail(error.what, error.remedy, error.exit_code)
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        _fail(f"the system refused{where}: {error.strerror or error}", "", 8)
    except KeyboardInterrupt:
        _fail("interrupted", "", 130)
    sys.exit(0)


def _fail(what: str, remedy: str, code: int) -> NoReturn:
    if os.environ.get("SLIPWAY_TRACEBACK") == "1":
        raise
    click.echo(f"error: {what}", err=True)
    if remedy:
        click.echo(f"fix:   {remedy}", err=True)
    sys.exit(code)
