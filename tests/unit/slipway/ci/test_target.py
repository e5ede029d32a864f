"""Where images go, and that they never go to a public registry by accident."""

from __future__ import annotations

import pytest

from slipway.ci.target import resolve
from slipway.errors import ConfigError

GITEA = {"GITHUB_SERVER_URL": "https://git.example.com:3000", "GITHUB_REPOSITORY": "Team/keel"}


def test_the_server_that_runs_the_workflow_is_the_default() -> None:
    assert resolve(GITEA, "slipway/keel").name == "git.example.com:3000/team/keel"


def test_what_is_named_wins() -> None:
    env = {**GITEA, "SLIPWAY_REGISTRY": "reg.example.com", "SLIPWAY_IMAGE": "a/b"}
    assert resolve(env, "slipway/keel").name == "reg.example.com/a/b"


@pytest.mark.parametrize("server", ["", "https://github.com"])
def test_without_a_registry_it_stops(server: str) -> None:
    with pytest.raises(ConfigError, match="no registry is named"):
        resolve({"GITHUB_SERVER_URL": server, "SLIPWAY_REGISTRY": " "}, "slipway/keel")
