"""The small project of `support.project`, with pip kept away from the network."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.project import IDENTITY, Project, make_project


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """git and pip as a stranger's machine has them: no configuration, no CI, no network."""
    for name in ("CI", "SLIPWAY_BRANCH", "GITHUB_REF_NAME", "PIP_EXTRA_INDEX_URL", "FULL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in IDENTITY.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return make_project(tmp_path)
