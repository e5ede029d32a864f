"""`slipway ci` and `slipway image matrix` as a person calls them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.pushes import IMAGE, PASSWORD, USER, Line, line
from support.pushes import ROOT as REPOSITORY


@pytest.fixture
def found(tmp_path: Path) -> Iterator[Line]:
    with line(tmp_path) as one:
        yield one


def slipway(at: Line, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    login = {"SLIPWAY_REGISTRY_USERNAME": USER, "SLIPWAY_REGISTRY_PASSWORD": PASSWORD}
    return subprocess.run(
        [sys.executable, "-m", "slipway", *words],
        cwd=at.project.root,
        env={**os.environ, **at.env, **login, "PYTHONPATH": str(REPOSITORY / "src"), **env},
        capture_output=True,
        text=True,
    )


def test_the_matrix_has_a_row_for_every_variant(found: Line) -> None:
    done = slipway(found, "image", "matrix", "--json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["include"]
    assert (row["variant"], row["plan"]) == ("cpu", "full")
    assert found.checkout.commit()[:9] in row["tag"]


def test_lint_passes_here_and_fails_on_what_only_github_accepts(found: Line) -> None:
    assert slipway(found, "ci", "lint").returncode == 0
    found.project.write(".gitea/workflows/x.yaml", "concurrency: one\njobs: {}\n")
    done = slipway(found, "ci", "lint")
    assert done.returncode == 14
    assert "x.yaml:1: error: concurrency" in done.stdout


@pytest.mark.slow
def test_a_dry_run_publishes_and_prune_keeps_what_is_used(found: Line) -> None:
    env = {"SLIPWAY_REGISTRY": found.address, "SLIPWAY_IMAGE": IMAGE}
    done = slipway(found, "ci", "dry-run", "--repo", IMAGE, **env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert PASSWORD not in done.stdout + done.stderr
    tags = set(found.images.tags())
    assert found.alias_commit() == found.checkout.commit()
    said = slipway(found, "ci", "prune", "--dry-run", "--keep", "1", "--keep-days", "0", **env)
    assert said.returncode == 0, said.stderr
    assert "main-latest" in said.stdout
    pruned = slipway(found, "ci", "prune", "--keep", "1", "--keep-days", "0", **env)
    assert pruned.returncode == 0, pruned.stderr
    assert set(found.images.tags()) == tags, pruned.stdout
