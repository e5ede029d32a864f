"""`slipway image`: commands on images that are there already, here or in a registry.

Without --registry (or SLIPWAY_REGISTRY) they look into the local store.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slipway.cli.image_options import (
    as_json_option,
    open_store,
    registry_option,
    repo_option,
    store_option,
)
from slipway.errors import IntegrityError

if TYPE_CHECKING:
    from slipway.build.catalog import Local, Shared
    from slipway.image.registry import Repository


def _shelf(store: Path | None, registry: str, repo: str) -> Local | Shared:
    from slipway.build.catalog import Local, Shared
    from slipway.build.remote import Remote

    images = open_store(store)
    if not registry:
        return Local(images)
    return Shared(Remote(_repository(registry, repo), images))


def _repository(registry: str, repo: str) -> Repository:
    from slipway.build import matrix as matrices
    from slipway.build.git import find_checkout
    from slipway.image.registry import Registry

    name = repo or matrices.load(find_checkout(Path.cwd()).root).repository
    return Registry(registry).repository(name)


def _where(function: Any) -> Any:
    return store_option(registry_option(repo_option(function)))


@click.command("ls")
@_where
@click.option("--all", "everything", is_flag=True, help="Deps images and bases too.")
@as_json_option
def list_images(
    store: Path | None, registry: str, repo: str, everything: bool, as_json: bool
) -> None:
    """List images, newest first, with all their names."""
    from slipway.build.catalog import listing

    rows = listing(_shelf(store, registry, repo), everything=everything)
    if as_json:
        click.echo(json.dumps([vars(row) for row in rows], indent=2))
        return
    for row in rows:
        size = f"{row.bytes / 1e6:.1f} MB"
        click.echo(f"{row.digest[7:19]}  {size:>10}  {row.commit:<9}  {', '.join(row.names)}")


@click.command()
@click.argument("name")
@_where
@as_json_option
def inspect(name: str, store: Path | None, registry: str, repo: str, as_json: bool) -> None:
    """Show an image by tag or digest: labels, config, layers."""
    from slipway.build.catalog import inspect as look
    from slipway.build.catalog import must

    found = look(must(_shelf(store, registry, repo), name))
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    click.echo(f"digest:   {found['digest']}")
    click.echo(f"platform: {found['platform']}")
    click.echo(f"created:  {found['created']}")
    for section in ("labels", "config"):
        click.echo(f"{section}:")
        for key, value in found[section].items():
            click.echo(f"  {key} = {value}")
    click.echo("layers:")
    for layer in found["layers"]:
        size = f"{layer['bytes'] / 1e6:.2f} MB"
        click.echo(f"  {layer['digest'][7:19]}  {size:>10}  {layer['created_by']}")


@click.command()
@click.argument("name")
@click.option("--to", required=True, help="The further name, e.g. v1.2.0.")
@click.option("--move", is_flag=True, help="Let the name leave another image.")
@_where
def promote(name: str, to: str, move: bool, store: Path | None, registry: str, repo: str) -> None:
    """Give an image a further name, by digest: nothing is built or copied."""
    from slipway.build.catalog import promote as name_again

    shelf = _shelf(store, registry, repo)
    digest = name_again(shelf, name, to, move=move)
    click.echo(f"{shelf.where}:{to} names {digest}")


@click.command()
@click.argument("before")
@click.argument("after")
@_where
@as_json_option
def diff(
    before: str, after: str, store: Path | None, registry: str, repo: str, as_json: bool
) -> None:
    """Say what differs between two images: packages, files, labels, layers."""
    from slipway.build.catalog import diff as compare
    from slipway.build.catalog import must

    shelf = _shelf(store, registry, repo)
    found = compare(must(shelf, before), must(shelf, after))
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=2))
        return
    for section in ("labels", "config", "packages", "files", "layers"):
        lines = getattr(found, section)
        if lines:
            click.echo(f"{section}:")
        for line in lines[:40]:
            click.echo(f"  {line}")
        if len(lines) > 40:
            click.echo(f"  … and {len(lines) - 40} more (--json has all)")
    click.echo(f"moved: {found.bytes_moved / 1e6:.3f} MB of layers")


@click.command()
@click.argument("name")
@_where
@as_json_option
def verify(name: str, store: Path | None, registry: str, repo: str, as_json: bool) -> None:
    """Read every layer of an image, and hold it against digests, labels, SBOM and git."""
    from slipway.build.catalog import must
    from slipway.build.catalog import verify as judge
    from slipway.build.git import find_checkout

    shelf = _shelf(store, registry, repo)
    image = must(shelf, name)
    wrong = judge(image, find_checkout(Path.cwd()), shelf.sboms(image))
    if as_json:
        click.echo(json.dumps({"digest": image.digest, "wrong": wrong}, indent=2))
    elif not wrong:
        click.echo(f"{image.digest}: layers, labels and source are as they should be")
    if wrong:
        more = f" (and {len(wrong) - 1} more; --json has all)" if len(wrong) > 1 else ""
        raise IntegrityError(f"{name}: {wrong[0]}{more}", "build it again, or look who pushed it")


@click.command()
@click.option("--keep", default=10, show_default=True, help="Builds of each branch and variant.")
@click.option("--keep-days", default=14, show_default=True, help="Builds younger than this stay.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@_where
@as_json_option
def prune(
    keep: int,
    keep_days: int,
    dry_run: bool,
    store: Path | None,
    registry: str,
    repo: str,
    as_json: bool,
) -> None:
    """Remove old builds that no alias, release tag or committed deployment refers to."""
    from slipway.build.git import find_checkout
    from slipway.build.prune import prune as remove

    root = find_checkout(Path.cwd()).root
    shelf = _shelf(store, registry, repo)
    verdicts = remove(shelf, root, keep=keep, keep_days=keep_days, dry_run=dry_run)
    if as_json:
        click.echo(json.dumps([vars(verdict) for verdict in verdicts], indent=2))
        return
    for verdict in verdicts:
        does = "keep  " if verdict.keep else "would go" if dry_run else "removed"
        click.echo(f"{does:<9}{', '.join(verdict.names)} ({verdict.why})")


@click.command()
@click.argument("name")
@click.option("--deep", is_flag=True, help="Read every layer, those of a foreign base too.")
@_where
def sbom(name: str, deep: bool, store: Path | None, registry: str, repo: str) -> None:
    """Print an image's software bill of materials (CycloneDX)."""
    from slipway.build.attest import sbom as bill
    from slipway.build.catalog import must

    image = must(_shelf(store, registry, repo), name)
    click.echo(json.dumps(bill(image, deep=deep), indent=2))


@click.command()
@click.argument("name")
@store_option
@registry_option
@repo_option
def push(name: str, store: Path | None, registry: str, repo: str) -> None:
    """Push an image of the local store under its own name; `build --push` is quicker."""
    import sys

    from slipway.build.catalog import Local, must
    from slipway.errors import UsageError
    from slipway.image.registry import push_image
    from slipway.image.registry.progress import reporter

    if not registry:
        raise UsageError(
            "push needs to know where to", "name a registry with --registry or SLIPWAY_REGISTRY"
        )
    image = must(Local(open_store(store)), name)
    repository = _repository(registry, repo)
    report = push_image(image, repository, [name], progress=reporter(sys.stderr))
    moved = f"{report.bytes_uploaded / 1e6:.2f} MB moved"
    click.echo(f"{repository}:{name}@{image.digest} ({moved})")


COMMANDS = (list_images, inspect, promote, diff, verify, prune, push, sbom)
