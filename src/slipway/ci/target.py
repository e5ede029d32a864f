"""Where a workflow publishes: registry and repository, never a public registry by accident."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from slipway.errors import ConfigError
from slipway.image.reference import Reference

# Servers of code that are no registries under their own name.
_NOT_REGISTRIES = ("github.com",)


def resolve(env: Mapping[str, str], matrix_repository: str) -> Reference:
    """The registry and repository that images go to.

    The registry is `SLIPWAY_REGISTRY`, else the server that runs the workflow (a Gitea server is a
    registry). The repository is `SLIPWAY_IMAGE`, else the owner of the source with the image's own
    name, as Gitea wants it.

    Args:
        env: the environment of a job.
        matrix_repository: the repository of `docker/matrix.toml`.

    Raises:
        ConfigError: neither names a registry, as where an instance evaluates `vars` to nothing.
    """
    registry = env.get("SLIPWAY_REGISTRY", "").strip()
    if not registry:
        registry = urlsplit(env.get("GITHUB_SERVER_URL", "")).netloc
    if not registry or registry in _NOT_REGISTRIES:
        raise ConfigError(
            "no registry is named: SLIPWAY_REGISTRY is empty, and "
            f"{registry or 'the environment'} is no server with a registry",
            "set the repository variable SLIPWAY_REGISTRY (or write it into the workflow's env, "
            "where the instance evaluates vars to nothing)",
        )
    owner = env.get("GITHUB_REPOSITORY", "").partition("/")[0].lower()
    name = matrix_repository.rpartition("/")[2]
    default = f"{owner}/{name}" if owner else matrix_repository
    return Reference(env.get("SLIPWAY_IMAGE", "").strip() or default, registry)
