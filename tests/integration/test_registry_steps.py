"""A build and push of one edited file: no more than seven requests in sequence (issue 5)."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipway.image.reference import Reference
from support.project import IDENTITY, make_project
from support.registries import FaultProxy, serving
from support.services import registry


def test_an_edit_takes_seven_steps_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in IDENTITY.items():
        monkeypatch.setenv(name, value)
    for name in ("CI", "SLIPWAY_BRANCH", "GITHUB_REF_NAME", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    project = make_project(tmp_path)
    with registry(tmp_path / "registry") as host, serving(FaultProxy(host)) as proxy:
        target = Reference("team/tiny", proxy.host)
        project.build(target=target, push=True)
        project.write("src/tiny/core/work.py", "VALUE = 2\n")
        project.commit("Edit")
        proxy.seen.clear()
        proxy.delay = 0.15  # far longer than what lies between two requests of one step
        built = project.build(target=target, push=True)
        assert built.published is not None
        assert built.published.alias
        assert proxy.depth() <= 7, [f"{seen.method} {seen.path}" for seen in proxy.seen]
