"""`slipway doctor`: what is here, and what each thing is needed for."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from slipway.errors import ToolMissingError


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--need",
    multiple=True,
    type=click.Choice(["image", "up", "test"]),
    help="Exit with 12 where something that this needs is missing.",
)
@click.option("--registry", metavar="HOST[:PORT]", help="Registry to look for; SLIPWAY_REGISTRY.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def command(need: tuple[str, ...], registry: str | None, as_json: bool) -> None:
    """Say what is here, and what each thing is needed for."""
    from slipway.doctor import Place, examine, lacking

    place = Place(Path.cwd(), registry or os.environ.get("SLIPWAY_REGISTRY", ""))
    findings = examine(place)
    if as_json:
        click.echo(json.dumps([finding.to_json() for finding in findings], indent=2))
    else:
        width = max(len(finding.name) for finding in findings)
        for finding in findings:
            word = {True: "ok", False: "missing", None: "-"}[finding.ok]
            click.echo(f"{word:<8} {finding.name:<{width}}  {finding.detail}")
            if not finding.ok:
                indent = " " * (width + 11)
                click.echo(
                    f"{indent}needed for {finding.needed_for}\n{indent}get it: {finding.get}"
                )
    missing = {f.name: (purpose, f) for purpose in need for f in lacking(findings, purpose)}
    if missing:
        purpose, first = next(iter(missing.values()))
        raise ToolMissingError(
            f"{purpose} needs {', '.join(missing)}: {first.name}: {first.detail}", first.get
        )
