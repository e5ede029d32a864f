"""Every form is read back by the program that it is for: sh, Compose, Python."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from slipway.cookbook.generate import Command, generate
from slipway.cookbook.render import FORMS, render
from slipway.deploy.compose import read_compose
from unit.slipway.cookbook.kitchens import load

KITCHEN = load().kitchen
NASTY = 'it\'s $HOME `id` "q" \\ é {x} #'
CHOICES: list[dict[str, str]] = [
    {},
    {"hw": "b200", "speculative": "draft"},
    {"hw": "mi355x"},
    {"strategy": "throughput", "cache": "store", "store": NASTY},
]
SPY = f"""#!{sys.executable}
import json, os, sys
from pathlib import Path
Path(os.environ["SPY_OUT"]).write_text(json.dumps([sys.argv, dict(os.environ)]))
"""


@pytest.fixture
def spies(tmp_path: Path) -> dict[str, str]:
    """A PATH on which `sglang` and `docker` write down how they were called."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sglang", "docker"):
        (folder / name).write_text(SPY)
        (folder / name).chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "SPY_OUT": str(tmp_path / "called.json")}


def called(env: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    argv, seen = json.loads(Path(env["SPY_OUT"]).read_text())
    return argv[1:], seen


def made(choices: dict[str, str]) -> Command:
    return generate(KITCHEN, choices)


@pytest.mark.parametrize("choices", CHOICES)
def test_sh_runs_exactly_the_words_with_exactly_the_environment(
    choices: dict[str, str], spies: dict[str, str]
) -> None:
    command = made(choices)
    for node, one in enumerate(command.nodes):
        text = render(KITCHEN, command, "shell", node)
        subprocess.run(["sh", "-euc", text], env=spies, check=True)
        argv, env = called(spies)
        assert ("sglang", *argv) == one.words
        assert {name: env[name] for name, _ in command.env} == dict(command.env)


@pytest.mark.parametrize("choices", CHOICES)
def test_python_runs_the_same(choices: dict[str, str], spies: dict[str, str]) -> None:
    command = made(choices)
    text = render(KITCHEN, command, "python")
    subprocess.run([sys.executable, "-c", text], env=spies, check=True)
    argv, env = called(spies)
    assert ("sglang", *argv) == command.nodes[0].words
    assert {name: env[name] for name, _ in command.env} == dict(command.env)


@pytest.mark.parametrize("choices", CHOICES)
def test_docker_run_is_given_image_environment_and_words(
    choices: dict[str, str], spies: dict[str, str]
) -> None:
    command = made(choices)
    subprocess.run(["sh", "-euc", render(KITCHEN, command, "docker")], env=spies, check=True)
    argv, _ = called(spies)
    at = argv.index(command.image)
    assert tuple(argv[at + 1 :]) == command.nodes[0].container_words
    given = [argv[i + 1] for i, word in enumerate(argv[:at]) if word == "-e"]
    assert given == ["HF_TOKEN", *(f"{name}={value}" for name, value in command.env)]
    assert ("--gpus" in argv) == (command.choices["hw"] != "mi355x")
    assert ("/dev/kfd" in argv) == (command.choices["hw"] == "mi355x")


@pytest.mark.parametrize("choices", CHOICES)
def test_compose_reads_the_words_back(choices: dict[str, str], tmp_path: Path) -> None:
    command = made(choices)
    path = tmp_path / "compose.yaml"
    path.write_text(render(KITCHEN, command, "compose") + "\n", encoding="utf-8")
    (service,) = read_compose(path, {}).services
    assert tuple(service.words) == command.nodes[0].container_words
    assert service.image == command.image
    YAML(typ="safe").load(path)
    compose = shutil.which("docker-compose") or Path(sys.executable).with_name("docker-compose")
    if not Path(compose).exists():
        pytest.skip("docker-compose is not installed: only our own reader was asked")
    done = subprocess.run(
        [compose, "-f", path, "config", "--format", "json"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (seen,) = json.loads(done.stdout)["services"].values()
    # `config` prints what could be read again: a dollar sign is doubled in its answer too
    words = tuple(word.replace("$$", "$") for word in seen["command"])
    assert words == command.nodes[0].container_words
    env = {k: v.replace("$$", "$") for k, v in seen["environment"].items() if v is not None}
    assert {name: env[name] for name, _ in command.env} == dict(command.env)


def test_an_unknown_form_names_those_that_exist() -> None:
    with pytest.raises(ValueError, match=", ".join(FORMS)):
        render(KITCHEN, made({}), "ansible")
