"""`slipway image matrix` and `pins`: every variant at a glance, and the versions they share."""

from __future__ import annotations

import json
from pathlib import Path

import click

from slipway.cli.image_options import (
    as_json_option,
    profile_option,
    registry_option,
    repo_option,
    store_option,
    target,
)


def _say(text: str) -> None:
    click.echo(f"== {text}", err=True)


@click.command()
@store_option
@registry_option
@repo_option
@profile_option
@click.option("--bake", is_flag=True, help="Write contexts, and print a file for `buildx bake`.")
@as_json_option
def matrix(store: Path | None, registry: str, repo: str, bake: bool, as_json: bool) -> None:
    """Every variant with its plan and its names: the rows of a workflow's matrix.

    A variant whose base is out of reach is planned all the same; one that was never built, here or
    in the registry, says so.
    """
    from slipway.build import matrix as matrices
    from slipway.build.bake import bake_file
    from slipway.build.git import find_checkout
    from slipway.build.run import STORE
    from slipway.build.run import plan as decide
    from slipway.build.wheels import cache_folder
    from slipway.ci.plan import row_of
    from slipway.image.layout import LayoutStore

    start, there = Path.cwd(), target(registry, repo)
    checkout = find_checkout(start)
    table = matrices.load(checkout.root)
    cache = cache_folder()
    plans = [
        decide(start, name, store, cache, target=there, unbuilt=True, say=_say)
        for name in table.variants
    ]
    if bake:
        click.echo(json.dumps(bake_file(checkout, plans, cache), indent=2))
        return
    names = set(LayoutStore(store or checkout.root / STORE).tags())
    if there is not None:
        from slipway.image.registry import Registry

        names |= set(Registry(there.registry).repository(repo or table.repository).tags())
    built = {
        plan.variant.name: any(
            name == plan.alias or name.startswith(f"deps-{plan.variant.name}-") for name in names
        )
        for plan in plans
    }
    if as_json:
        rows = [
            {**row_of(plan).to_json(), "built": built[plan.variant.name], "ci": plan.variant.ci}
            for plan in plans
        ]
        click.echo(json.dumps({"include": rows}))
        return
    for plan in plans:
        never = "" if built[plan.variant.name] else " (never built)"
        click.echo(f"{plan.variant.name}{never}: {plan.sentence}\n  {plan.tag}, {plan.alias}")


@click.group(invoke_without_command=True)
@click.pass_context
def pins(context: click.Context) -> None:
    """Show the versions that several variants share, and which variants those are."""
    if context.invoked_subcommand:
        return
    from slipway.build import matrix as matrices
    from slipway.build import pins as values
    from slipway.build.git import find_checkout

    root = find_checkout(Path.cwd()).root
    users = values.users(root)
    for name, value in matrices.load(root).pins.items():
        click.echo(f"{name} = {value}\n  {', '.join(users[name]) or 'nobody'}")


@pins.command()
@click.argument("name")
@click.argument("value")
def bump(name: str, value: str) -> None:
    """Write the pin NAME's new VALUE into docker/matrix.toml."""
    from slipway.build import pins as values
    from slipway.build.git import find_checkout

    changed = values.bump(find_checkout(Path.cwd()).root, name, value)
    click.echo(f"{name} = {value}; changes: {', '.join(changed) or 'nothing'}")


COMMANDS = (matrix, pins)
