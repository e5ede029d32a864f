"""`slipway image`: plan, build and look at images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slipway.cli import image_catalog, image_matrix
from slipway.cli.image_options import as_json_option as _json
from slipway.cli.image_options import open_store as _open
from slipway.cli.image_options import profile_option as _profile
from slipway.cli.image_options import registry_option as _registry
from slipway.cli.image_options import repo_option as _repo
from slipway.cli.image_options import store_option as _store_option
from slipway.cli.image_options import target as _target

if TYPE_CHECKING:
    from slipway.image.descriptor import Descriptor
    from slipway.image.registry.progress import Progress

_variant = click.option("--variant", default="", help="A row of docker/matrix.toml.")
_builder = click.option(
    "--builder",
    type=click.Choice(["assemble", "buildx", "buildah"]),
    default=None,
    help="Who makes the dependencies.  [default: as docker/matrix.toml says]",
)
_full = click.option("--full", is_flag=True, envvar="FULL", help="Make the dependencies anew.")


@click.group()
def command() -> None:
    """Plan, build, push and look at images."""


for _command in (*image_catalog.COMMANDS, *image_matrix.COMMANDS):
    command.add_command(_command)


def _say(text: str) -> None:
    click.echo(f"== {text}", err=True)


def _progress() -> Progress:
    import sys

    from slipway.image.registry.progress import reporter

    tell = reporter(sys.stderr)

    def moved(blob: Descriptor, done: int, outcome: str) -> None:
        if outcome != "present":  # no news on the fast path
            tell(blob, done, outcome)

    return moved


@command.command()
@_variant
@_profile
@_builder
@_full
@_store_option
@_registry
@_repo
@_json
def plan(
    variant: str,
    builder: str | None,
    full: bool,
    store: Path | None,
    registry: str,
    repo: str,
    as_json: bool,
) -> None:
    """Say what a build would do, and why; builds nothing but a missing base."""
    from slipway.build.run import plan as decide
    from slipway.build.wheels import cache_folder

    target = _target(registry, repo)
    decided = decide(
        Path.cwd(),
        variant,
        store,
        cache_folder(),
        full=full,
        target=target,
        builder=builder or "",
        say=_say,
    )
    if as_json:
        click.echo(json.dumps(decided.to_json(), indent=2))
        return
    click.echo(decided.sentence)
    click.echo(f"tag:   {decided.tag}\nalias: {decided.alias}")
    click.echo(f"base:  {decided.base.origin} ({decided.base.why})")


@command.command()
@click.argument("tag", default="")
@_variant
@_profile
@_builder
@_full
@_store_option
@click.option("--push", is_flag=True, help="Push it to --registry under --repo.")
@click.option(
    "--attest/--no-attest",
    default=None,
    help="Attach SBOM and provenance to what is pushed.  [default: in CI]",
)
@_registry
@_repo
@click.option(
    "--docker-archive",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write a tar for `docker load`.",
)
@_json
def build(
    tag: str,
    variant: str,
    builder: str | None,
    full: bool,
    store: Path | None,
    push: bool,
    attest: bool | None,
    registry: str,
    repo: str,
    docker_archive: Path | None,
    as_json: bool,
) -> None:
    """Build this checkout's image, under TAG or its usual tag."""
    from slipway.build.run import build as run
    from slipway.build.wheels import cache_folder
    from slipway.errors import UsageError

    if push and not registry:
        raise UsageError(
            "--push needs to know where to", "name a registry with --registry or SLIPWAY_REGISTRY"
        )
    built = run(
        Path.cwd(),
        variant,
        store,
        cache_folder(),
        tag=tag,
        full=full,
        target=_target(registry, repo),
        push=push,
        attest=attest,
        builder=builder or "",
        progress=_progress() if push else None,
        say=_say,
    )
    result = built.to_json()
    if docker_archive:
        from slipway.image.archive import write_docker_archive

        name = f"{built.plan.matrix.repository}:{built.tag}"
        write_docker_archive(built.image, [name], docker_archive)
        result["docker_archive"] = str(docker_archive)
    if as_json:
        click.echo(json.dumps(result, indent=2))
        return
    for line in describe(result):
        click.echo(line)


def describe(result: dict[str, Any]) -> list[str]:
    """A build's result for a person, a line each."""
    lines = [
        f"image:   {result['repository']}:{result['tag']}",
        f"alias:   {result['alias'] or '(left where it is: it names a newer commit)'}",
        f"digest:  {result['digest']}",
        f"size:    {result['bytes'] / 1e6:.1f} MB in {result['layers']} layers",
        f"plan:    {result['plan']}: {result['why']}",
        f"time:    {result['seconds']:.2f} s",
    ]
    if "pushed" in result:
        lines.append(f"pushed:  {result['pushed']} ({result['bytes_pushed'] / 1e6:.2f} MB moved)")
    if "docker_archive" in result:
        lines.append(f"load:    docker load -i {result['docker_archive']}")
    return lines


@command.command()
@_variant
@_profile
@_store_option
@click.option("--update", is_flag=True, help="Choose again, and record a registry's digest.")
def base(variant: str, store: Path | None, update: bool) -> None:
    """Have the variant's base here, and say which one it is and why."""
    from slipway.build import base as bases
    from slipway.build import matrix as matrices
    from slipway.build.git import find_checkout
    from slipway.build.wheels import cache_folder

    root = find_checkout(Path.cwd()).root
    matrix = matrices.load(root)
    row = matrix.variant(variant or matrix.default_variant)
    images, cache = _open(store), cache_folder()
    found = bases.choose(root, images, row, cache, update=update)
    found = bases.fetch(images, row, found, cache)
    click.echo(f"base of {row.name}: {found.origin} ({found.why})\ndigest: {found.digest}")
    if update and bases.record(root, row, found):
        click.echo(f"recorded in {bases.LOCK}")


@command.command()
@click.argument("variant")
def lock(variant: str) -> None:
    """Write the lock file of VARIANT anew from pyproject.toml, with pip-compile."""
    from slipway.build import matrix as matrices
    from slipway.build.compile import write_lock
    from slipway.build.git import find_checkout

    root = find_checkout(Path.cwd()).root
    matrix = matrices.load(root)
    row = matrix.variant(variant)
    write_lock(root, matrix.engine, row, _say)
    click.echo(f"wrote {row.lock}")


@command.command()
@click.argument("tag")
@click.argument("path", type=click.Path(path_type=Path, dir_okay=False))
@_store_option
def export(tag: str, path: Path, store: Path | None) -> None:
    """Write the image TAG as a tar for `docker load`."""
    from slipway.build import matrix as matrices
    from slipway.build.git import find_checkout
    from slipway.errors import UsageError
    from slipway.image.archive import write_docker_archive

    images = _open(store)
    image = images.read_image(tag)
    if image is None:
        names = [name for name in images.tags() if not name.startswith(("deps-", "base-"))]
        raise UsageError(
            f"there is no image {tag} in {images.root}", f"there are: {', '.join(names) or 'none'}"
        )
    repository = matrices.load(find_checkout(Path.cwd()).root).repository
    write_docker_archive(image, [f"{repository}:{tag}"], path)
    click.echo(f"docker load -i {path}")
