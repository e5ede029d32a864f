"""Options that the commands of `slipway image` share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from slipway.image.layout import LayoutStore
    from slipway.image.reference import Reference

store_option = click.option(
    "--store",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where images lie (an OCI layout).  [default: dist/images of the checkout]",
)
registry_option = click.option(
    "--registry",
    envvar="SLIPWAY_REGISTRY",
    default="",
    help="Host[:port] of the registry.",
)
repo_option = click.option(
    "--repo", default="", help="Repository there.  [default: that of docker/matrix.toml]"
)


def _use_profile(_context: click.Context, _parameter: click.Parameter, name: str) -> None:
    if name:
        from slipway.build import matrix as matrices
        from slipway.build.git import find_checkout

        matrices.use_profile(matrices.load(find_checkout(Path.cwd()).root), name)


profile_option = click.option(
    "--profile",
    envvar="SLIPWAY_PROFILE",
    default="",
    expose_value=False,
    callback=_use_profile,
    help="Mirrors to take bases and packages from: a profile of docker/matrix.toml.",
)
as_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")


def target(registry: str, repo: str) -> Reference | None:
    """Where images are pushed and looked for; an empty repository is the matrix's."""
    from slipway.image.reference import Reference

    return Reference(repo, registry) if registry else None


def open_store(store: Path | None) -> LayoutStore:
    """The layout store that is named, else the checkout's."""
    from slipway.build.git import find_checkout
    from slipway.build.run import STORE
    from slipway.image.layout import LayoutStore

    return LayoutStore(store or find_checkout(Path.cwd()).root / STORE)
