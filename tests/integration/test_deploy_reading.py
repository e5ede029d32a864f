"""Compose files are read as the real Compose reads them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from slipway.deploy.compose import read_compose
from slipway.deploy.docker import compose_command
from slipway.errors import SlipwayError

try:
    COMPOSE = compose_command()
except SlipwayError:
    COMPOSE = []
pytestmark = pytest.mark.skipif(not COMPOSE, reason="Docker Compose is not installed")

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (each / "shared/seed-deploy" for each in ROOT.parents)
SEED = next((each for each in FOLDERS if each.is_dir()), None)

BASE = """
services:
  base:
    image: base:1
    environment: {A: 1, B: two, C: true}
    ports: ["9000-9001:9000-9001"]
    volumes: ["/data:/data"]
    command: [serve, "--x"]
"""
ALL = """
name: all
x-common: &common
  environment: &env {SHARED: "1", TP: "2"}
  volumes:
    - /models:/models:ro
x-more: &more {shm_size: 1gb}
services:
  folded:
    <<: [*common, *more]
    image: ${IMAGE:-registry.example/keel:1}
    environment:
      <<: *env
      TP: "4"
      NUMBER: 30000
      EMPTY: ""
    command: >
      sglang serve
      --json '{"a": {"b": 1}}'
      --name "two words"

      --price 5$$
  script:
    image: keel
    entrypoint: ["bash", "-c"]
    command:
      - |
        export A=1 &&
        sglang serve --port $$PORT
    environment: [PORT=1, "WITH=a=b"]
    ports:
      - "127.0.0.1:80:30000"
      - {target: 7, published: "8", host_ip: 127.0.0.1}
  extended:
    extends: {file: base.yml, service: base}
    environment: [B=three]
    volumes: ["/more:/more"]
    ports: ["1:2"]
  again:
    extends: extended
    command: serve --y
"""


def agrees(path: Path, settings: dict[str, str]) -> int:
    """Compare every service; how many there were."""
    done = subprocess.run(
        [*COMPOSE, "-f", str(path), "config", "--format", "json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"PATH": "/usr/bin:/bin", "HOME": "/tmp", **settings},
    )
    assert done.returncode == 0, done.stderr
    theirs = json.loads(done.stdout)
    file = read_compose(path, settings)
    assert {service.name for service in file.services} == set(theirs["services"])
    for service in file.services:
        other = theirs["services"][service.name]
        words = [*(other.get("entrypoint") or ()), *(other.get("command") or ())]
        assert list(service.words) == [word.replace("$$", "$") for word in words]
        given = other.get("environment") or {}
        environment = {name: (value or "").replace("$$", "$") for name, value in given.items()}
        assert dict(service.environment) == environment
        assert sorted((port.target, str(port.published)) for port in service.ports) == sorted(
            (port["target"], port["published"]) for port in other.get("ports", ())
        )
        assert [mount.target for mount in service.mounts] == [
            mount["target"] for mount in other.get("volumes", ())
        ]
    return len(file.services)


def test_every_form_is_read_as_compose_reads_it(tmp_path: Path) -> None:
    (tmp_path / "base.yml").write_text(BASE)
    (tmp_path / "compose.yml").write_text(ALL)
    assert agrees(tmp_path / "compose.yml", {}) == 4


@pytest.mark.skipif(SEED is None, reason="the seed's files are not here")
def test_the_files_that_operators_ran_are_read_as_compose_reads_them() -> None:
    assert SEED is not None
    assert sum(agrees(path, {}) for path in sorted(SEED.glob("*.yml"))) == 38
