"""Everything that a runner can have wrong is said, each with its fix."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from slipway.build.git import Checkout
from slipway.ci.preflight import LARGE, Finding, check
from slipway.image.reference import Reference
from support.project import make_project
from support.registries import FaultProxy, serving
from support.services import free_port, registry


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    for name in ("SLIPWAY_REGISTRY", "SLIPWAY_REGISTRY_USERNAME", "SLIPWAY_REGISTRY_PASSWORD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "no-docker"))
    project = make_project(tmp_path)
    project.git("tag", "v1.0.0")
    return Checkout(project.root)


@pytest.fixture
def login(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPWAY_REGISTRY_USERNAME", "robot")
    monkeypatch.setenv("SLIPWAY_REGISTRY_PASSWORD", "secret-word")


def named(findings: list[Finding]) -> dict[str, str]:
    return {finding.name: finding.level for finding in findings}


@pytest.mark.usefixtures("login")
def test_a_good_runner(checkout: Checkout, tmp_path: Path) -> None:
    with registry(tmp_path / "registry", "robot", "secret-word") as address:
        found = check(checkout, Reference("team/tiny", address))
    assert named(found) == dict.fromkeys(("clone", "credentials", "write scope", "clock"), "ok")


def test_no_credentials(checkout: Checkout, tmp_path: Path) -> None:
    with registry(tmp_path / "registry", "robot", "secret-word") as address:
        found = check(checkout, Reference("team/tiny", address))
    assert named(found) == {"clone": "ok", "credentials": "warns", "write scope": "fails"}
    assert "REGISTRY_USERNAME" in found[-1].remedy


@pytest.mark.usefixtures("login")
def test_a_token_without_write_scope(checkout: Checkout, tmp_path: Path) -> None:
    with (
        registry(tmp_path / "registry", "robot", "secret-word") as address,
        serving(FaultProxy(address)) as proxy,
    ):
        proxy.fault(method="POST", status=403, times=9)
        found = check(checkout, Reference("team/tiny", proxy.host))
    assert (found[-1].name, found[-1].level) == ("write scope", "fails")
    assert "write:package" in found[-1].remedy
    assert "secret-word" not in "".join(map(str, found))


def test_a_proxy_that_refuses_large_layers(checkout: Checkout, tmp_path: Path) -> None:
    with registry(tmp_path / "registry") as address, serving(FaultProxy(address)) as proxy:
        proxy.fault(method="PATCH", over=LARGE - 1, status=413, early=True, times=9)
        found = check(checkout, Reference("team/tiny", proxy.host))
    assert named(found)["large layers"] == "warns"
    assert "client_max_body_size" in found[-1].remedy


def test_a_clock_that_is_hours_off(checkout: Checkout, tmp_path: Path) -> None:
    with registry(tmp_path / "registry") as address:
        found = check(checkout, Reference("team/tiny", address), lambda: time.time() + 3 * 3600)
    assert named(found)["clock"] == "fails"
    assert "3.0 h ahead" in next(one.what for one in found if one.name == "clock")


def test_a_registry_that_is_not_there(checkout: Checkout) -> None:
    found = check(checkout, Reference("team/tiny", f"127.0.0.1:{free_port()}"))
    assert named(found)["registry"] == "fails"


def test_a_shallow_clone_and_one_without_tags(checkout: Checkout, tmp_path: Path) -> None:
    target = Reference("team/tiny", f"127.0.0.1:{free_port()}")
    source = f"file://{checkout.root}"
    subprocess.run(["git", "clone", "-q", "--depth=1", source, tmp_path / "s"], check=True)
    found = check(Checkout(tmp_path / "s"), target)[0]
    assert (found.name, found.level) == ("clone", "fails")
    subprocess.run(["git", "clone", "-q", "--no-tags", source, tmp_path / "n"], check=True)
    found = check(Checkout(tmp_path / "n"), target)[0]
    assert (found.name, found.level) == ("clone", "warns")
