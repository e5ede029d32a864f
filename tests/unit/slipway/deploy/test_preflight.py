"""What this machine lacks for a deployment is said before anything starts."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from slipway.deploy.compose import ComposeFile, parse_compose
from slipway.deploy.preflight import (
    locate_model,
    require_model,
    require_ports,
    require_settings,
)
from slipway.errors import DeploymentError


def deployment(models: Path, model: str = "x.gguf", port: str = "127.0.0.1:1:30000") -> ComposeFile:
    text = f"""
name: one
services:
  engine:
    image: keel
    command: [serve, --model-path=/models/{model}]
    ports: ["{port}"]
    volumes: ["{models}:/models:ro"]
"""
    return parse_compose(text, Path("one.yml"), {})


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "x.gguf").touch()
    for entry in (tmp_path, folder):
        entry.chmod(0o755)
    (folder / "x.gguf").chmod(0o644)
    return folder


def test_a_model_that_is_there_and_readable_passes(models: Path) -> None:
    require_model(deployment(models), "")
    require_model(deployment(models), "10001:10001")
    require_model(deployment(models, ""), "10001:10001")


def test_a_missing_folder_and_a_missing_file_are_told_apart(models: Path) -> None:
    with pytest.raises(DeploymentError, match=r"engine mounts .*/nowhere, which does not exist"):
        require_model(deployment(models.parent / "nowhere"), "")
    with pytest.raises(
        DeploymentError, match=r"engine loads .*/y\.gguf, which does not exist"
    ) as e:
        require_model(deployment(models, "y.gguf"), "")
    assert "has x.gguf" in e.value.remedy


@pytest.mark.parametrize(
    ("file_mode", "folder_mode", "user", "blocked"),
    [
        (0o600, 0o755, "10001:10001", "x.gguf"),
        (0o644, 0o700, "10001:10001", "models"),
        (0o600, 0o700, "", ""),
        (0o600, 0o700, "0:0", ""),
        (0o600, 0o700, f"{os.getuid() or 12345}", "" if os.getuid() else "models"),
        (0o640, 0o750, f"10001:{os.getgid()}", ""),
    ],
)
def test_a_user_who_may_not_read_is_found_by_owner_group_and_others(
    models: Path, file_mode: int, folder_mode: int, user: str, blocked: str
) -> None:
    (models / "x.gguf").chmod(file_mode)
    models.chmod(folder_mode)
    if not blocked:
        require_model(deployment(models), user)
        return
    with pytest.raises(DeploymentError, match=rf"who may not read .*{blocked}$") as caught:
        require_model(deployment(models), user)
    assert caught.value.remedy == f"chmod -R o+rX {models}"


def test_a_port_is_free_ours_or_anothers(models: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        file = deployment(models, port=f"127.0.0.1:{number}:30000")
        require_ports(file, {number})
        with pytest.raises(DeploymentError, match=f"127.0.0.1:{number}, which is in use"):
            require_ports(file, ())
    require_ports(file, ())


def test_an_address_of_another_machine_is_named(models: Path) -> None:
    file = deployment(models, port="192.0.2.1:31399:30000")
    with pytest.raises(DeploymentError, match="which is no address of this machine"):
        require_ports(file, ())


def test_a_variable_without_a_value_is_named_with_its_purpose(models: Path) -> None:
    require_settings(deployment(models), {})
    with pytest.raises(DeploymentError, match="one needs MODEL_DIR: where it is") as caught:
        require_settings(deployment(models), {"MODEL_DIR": "where it is"})
    assert "--model-dir PATH" in caught.value.remedy


def test_a_file_is_mounted_with_its_folder_and_a_folder_as_itself(models: Path) -> None:
    assert locate_model(models / "x.gguf") == (models, "x.gguf")
    assert locate_model(models) == (models, "")


def test_a_relative_path_is_made_absolute(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(models.parent)
    assert locate_model(Path("models/x.gguf")) == (models, "x.gguf")


def test_a_cache_of_links_and_blobs_is_mounted_where_both_are_seen(tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "hub" / "snapshots" / "abc", tmp_path / "hub" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "123").touch()
    (snapshot / "config.json").symlink_to("../../blobs/123")
    assert locate_model(snapshot) == (tmp_path / "hub", "snapshots/abc")
    assert locate_model(snapshot / "config.json") == (
        tmp_path / "hub",
        "snapshots/abc/config.json",
    )


def test_a_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DeploymentError, match="there is no model at"):
        locate_model(tmp_path / "none.gguf")
