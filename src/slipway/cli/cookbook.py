"""`slipway cookbook`: commands for a model and a machine, the site that shows them, its checks."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slipway.errors import UsageError

if TYPE_CHECKING:
    from slipway.cookbook.load import Page


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Generate launch commands, build the cookbook's site, check both."""


@command.command(
    "command",
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
@click.argument("model", required=False)
@click.option("--card", "cards", multiple=True, metavar="ID=OPTION", help="Choose a card's option.")
@click.option("--set", "values", multiple=True, metavar="ID=TEXT", help="Fill in a blank.")
@click.option(
    "--as", "form", type=click.Choice(["shell", "docker", "compose", "python", "json"]),
    default="shell", help="How to write it down.",
)  # fmt: skip
@click.option("--node", type=int, default=0, help="Of several nodes, which one; 0 is the head.")
@click.option("--choices", "show", is_flag=True, help="List what can be chosen, and stop.")
@click.pass_context
def command_(
    context: click.Context,
    model: str | None,
    cards: tuple[str, ...],
    values: tuple[str, ...],
    form: str,
    node: int,
    show: bool,
) -> None:
    """Print the command that serves MODEL, for choices such as --hw h200 --strategy balanced.

    Without MODEL, the models are listed.
    """
    import msgspec

    from slipway.cookbook.generate import generate
    from slipway.cookbook.load import find_root, load_pages
    from slipway.cookbook.render import render

    pages = load_pages(find_root(Path.cwd()))
    if model is None:
        for slug, page in pages.items():
            click.echo(f"{slug:<18}{page.recipe.summary}")
        return
    page = _find(pages, model)
    if show:
        _list_choices(page)
        return
    choices = _pairs(context.args) | _split(cards, "--card") | _split(values, "--set")
    made = generate(page.kitchen, choices)
    if form == "json":
        click.echo(json.dumps(msgspec.to_builtins(made), indent=2))
        return
    if not 0 <= node < len(made.nodes):
        raise UsageError(
            f"--node {node}: the deployment has {len(made.nodes)} node(s)",
            f"choose 0 to {len(made.nodes) - 1}",
        )
    for warning in made.warnings:
        click.echo(f"warning: {warning}", err=True)
    for note in made.notes:
        click.echo(f"note: {note}", err=True)
    if made.verified is None:
        click.echo("note: not run by us on this hardware", err=True)
    click.echo(render(page.kitchen, made, form, node))


@command.command()
@click.option(
    "--output", type=click.Path(path_type=Path), default=None, help="Folder; dist/site by default."
)
@click.option(
    "--images", metavar="REGISTRY/REPOSITORY", help="Also a catalogue of the images there."
)
def build(output: Path | None, images: str | None) -> None:
    """Write the site: static files that work from a folder, offline."""
    from slipway.cli import command as program
    from slipway.cookbook.load import find_root
    from slipway.cookbook.site import build as build_site

    root = find_root(Path.cwd())
    folder = output or root / "dist" / "site"
    site = build_site(root, folder, program, _catalogue(images, root) if images else "")
    click.echo(f"{sum(1 for _ in site.pages)} pages in {folder}/index.html")


def _catalogue(images: str, root: Path) -> str:
    import datetime

    from slipway.cookbook.catalogue import entries, page, pinned_by
    from slipway.image.reference import parse
    from slipway.image.registry import Registry

    where = parse(images)
    with closing(Registry(where.registry)) as registry:
        rows = entries(registry.repository(where.repository), pinned_by(root / "dist/deploy"))
    return page(where.name, rows, datetime.datetime.now(datetime.UTC))


@command.command()
@click.option("--server", metavar="HOST:PORT", help="Also run the examples of MODEL against it.")
@click.option("--model", default="smollm2-135m", help="Whose examples --server runs.")
def check(server: str | None, model: str) -> None:
    """Hold every command, image, link, example and figure against what it claims."""
    from slipway.cli import command as program
    from slipway.cookbook.check import check as judge
    from slipway.cookbook.examples import run_examples
    from slipway.cookbook.load import find_root, load_pages
    from slipway.errors import ConfigError

    root = find_root(Path.cwd())
    done = judge(root, program)
    for finding in done.findings:
        click.echo(str(finding))
    wrong = sum(finding.error for finding in done.findings)
    if server:
        for one in run_examples(_find(load_pages(root), model).text, server):
            click.echo(f"{'ran' if one.ok else 'error'}: {one.where}")
            if not one.ok:
                click.echo(one.output)
                wrong += 1
    click.echo(
        f"{done.commands} commands, {done.pages} pages, {done.examples} examples checked: "
        f"{wrong or 'no'} error{'' if wrong == 1 else 's'}"
    )
    if wrong:
        raise ConfigError(f"the cookbook has {wrong} error(s)", "each line above names its place")


def _find(pages: dict[str, Page], model: str) -> Page:
    from difflib import get_close_matches

    slug = model.lower().rsplit("/", 1)[-1]
    if slug in pages:
        return pages[slug]
    near = get_close_matches(slug, pages, n=1)
    raise UsageError(
        f"there is no recipe for {model!r}",
        f"did you mean {near[0]}?" if near else f"choose from {', '.join(pages)}",
    )


def _pairs(words: list[str]) -> dict[str, str]:
    """`--hw h200` and `--hw=h200` as choices."""
    choices: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if not name.startswith("--"):
            raise UsageError(f"{word!r} is no choice", "write --hw h200")
        if not equals:
            value = next(rest, "")
            if not value or value.startswith("--"):
                raise UsageError(f"{name} has no value", f"write {name} OPTION")
        choices[name[2:]] = value
    return choices


def _split(entries: tuple[str, ...], flag: str) -> dict[str, str]:
    choices = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        if not equals:
            raise UsageError(f"{flag} {entry!r} has no value", f"write {flag} {name}=OPTION")
        choices[name] = value
    return choices


def _list_choices(page: Page) -> None:
    from slipway.cookbook.generate import all_values

    recipe = page.recipe
    for dimension in recipe.dimensions:
        options = ", ".join(option.id for option in dimension.options)
        click.echo(f"--{dimension.id:<22}{options} (default {dimension.default})")
    for layer in recipe.layers:
        options = ", ".join(option.id for option in layer.options)
        click.echo(f"--card {layer.id + '=':<17}{options} (default {layer.default})")
    for value in all_values(page.kitchen):
        click.echo(f"--set {value.id + '=':<18}{value.label} (default {value.default})")
