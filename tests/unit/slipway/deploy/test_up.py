"""The parts of `up` that need no engine: which archive, whose settings, which door."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slipway.deploy import archive
from slipway.deploy.compose import parse_compose
from slipway.deploy.up import find_archive, front_door, settle_variables, up
from slipway.errors import DeploymentError, SlipwayError, UsageError

ROOT = Path(__file__).resolve().parents[4]


def door(services: str) -> str:
    return front_door(parse_compose(f"name: x\nservices:\n{services}", Path("x.yml"), {}))


@pytest.mark.parametrize(
    ("services", "url"),
    [
        ('  e: {command: serve, ports: ["127.0.0.1:8:30000"]}', "http://127.0.0.1:8"),
        ('  e: {command: serve, ports: ["8:30000"]}', "http://127.0.0.1:8"),
        ('  e: {command: serve, ports: ["192.0.2.7:8:30000"]}', "http://192.0.2.7:8"),
        ('  e: {command: serve, ports: ["[::1]:8:30000"]}', "http://[::1]:8"),
        ("  e: {command: serve --port 9, network_mode: host}", "http://127.0.0.1:9"),
        (
            '  e: {command: serve, ports: ["8:30000"]}\n  r: {command: router, ports: ["7:1"]}',
            "http://127.0.0.1:7",
        ),
        (
            '  m: {command: metrics, ports: ["6:6"]}\n  e: {command: serve, ports: ["8:30000"]}',
            "http://127.0.0.1:8",
        ),
    ],
)
def test_clients_go_to_the_router_and_else_to_an_engine(services: str, url: str) -> None:
    assert door(services) == url


def test_a_deployment_without_a_door_is_refused() -> None:
    with pytest.raises(DeploymentError, match="x publishes no port"):
        door("  e: {command: serve}")


TEXT = "a: ${MODEL_DIR:?where}\nb: ${PORT:-30000}\n# ${COMMENT}\n"


def test_settings_win_over_the_environment_and_that_over_last_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".env").write_text("MODEL_DIR=/last\nPORT=1\nOTHER=x\n")
    monkeypatch.delenv("MODEL_DIR", raising=False)
    monkeypatch.delenv("PORT", raising=False)
    assert settle_variables(TEXT, tmp_path, {}) == {"MODEL_DIR": "/last", "PORT": "1"}
    monkeypatch.setenv("PORT", "2")
    assert settle_variables(TEXT, tmp_path, {})["PORT"] == "2"
    assert settle_variables(TEXT, tmp_path, {"PORT": "3"})["PORT"] == "3"


def test_a_variable_that_the_deployment_does_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no variable PROT") as caught:
        settle_variables(TEXT, tmp_path, {"PROT": "1"})
    assert "MODEL_DIR, PORT" in caught.value.remedy


def test_the_newest_archive_of_a_name_is_taken(tmp_path: Path) -> None:
    (tmp_path / "deploy" / "local-cpu").mkdir(parents=True)
    (tmp_path / "deploy" / "local-cpu" / "site.toml").touch()
    with pytest.raises(UsageError, match="has no archive of 'local-cpu-single'"):
        find_archive("local-cpu-single", tmp_path)
    folder = tmp_path / "dist" / "deploy"
    folder.mkdir(parents=True)
    for tag, seconds in (("b", 300), ("a", 200), ("c", 100)):
        path = folder / f"local-cpu-single-{tag}.tar.zst"
        path.touch()
        os.utime(path, (seconds, seconds))
    assert find_archive("local-cpu-single", tmp_path).name == "local-cpu-single-b.tar.zst"
    assert find_archive("x.tar.zst", tmp_path) == Path("x.tar.zst")
    assert find_archive("./x", tmp_path) == Path("x")


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"README.md": b""}, "holds 0 Compose files"),
        ({"dockerserve-a.yml": b"", "dockerserve-b.yml": b""}, "holds 2 Compose files"),
    ],
)
def test_an_archive_that_starts_nothing_is_refused(
    tmp_path: Path, files: dict[str, bytes], says: str
) -> None:
    path = tmp_path / "x.tar.zst"
    path.write_bytes(archive.pack("x", files, 0))
    with pytest.raises(UsageError, match=says):
        up(path, {}, state=tmp_path / "state", store=None, timeout=1, say=print)


@pytest.mark.docker
@pytest.mark.parametrize("name", ["../../elsewhere", "/etc", "", "Upper"])
def test_a_project_whose_name_leaves_the_state_folder_is_refused(tmp_path: Path, name: str) -> None:
    text = f'name: "{name}"\nservices: {{e: {{image: keel, command: serve}}}}\n'
    path = tmp_path / "x.tar.zst"
    path.write_bytes(archive.pack("x", {"dockerserve-x.yml": text.encode()}, 0))
    with pytest.raises(SlipwayError, match="is no project's name"):
        up(path, {}, state=tmp_path / "state", store=None, timeout=1, say=print)
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.tar.zst"]


def test_an_empty_model_is_refused_and_not_taken_for_this_folder() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "slipway", "deploy", "up", "x.tar.zst", "--model-dir", ""],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, "error: --model-dir is empty")
