"""The SmolLM2 page is run: its commands start a real server, its examples are asked of it."""

from __future__ import annotations

import os
import re
import socket
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from keel.errors import FetchError
from keel.weights.fetch import fetch
from slipway.cookbook.examples import run_examples, served
from slipway.cookbook.generate import generate
from slipway.cookbook.load import load_pages
from slipway.cookbook.render import render

ROOT = Path(__file__).resolve().parents[2]
PAGE = load_pages(ROOT)["smollm2-135m"]
# Every option of every choice at least once; the bench goes through all combinations.
CHOICES: list[dict[str, str]] = [
    {},
    {"strategy": "throughput", "prefix-cache": "report", "context": "short"},
    {"prefix-cache": "off"},
]
PREFIX = "The ship left its slipway in the morning. " * 8
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="the engine runs on Linux"),
]


@pytest.fixture(scope="module")
def values() -> dict[str, str]:
    """The reader's blanks: where the model lies, and a free port."""
    pytest.importorskip("torch")
    try:
        model = fetch("smollm2-135m")
    except FetchError as error:
        pytest.skip(f"the model cannot be had here: {error.what}")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return {"model-dir": str(model.parent), "port": str(probe.getsockname()[1])}


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which `keel` is this checkout's engine."""
    folder = tmp_path_factory.mktemp("bin")
    (folder / "keel").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m keel "$@"\n')
    (folder / "keel").chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    source = str(ROOT / "src")
    return {**os.environ, "PATH": path, "PYTHONPATH": source, "OMP_NUM_THREADS": "2"}


@pytest.fixture(scope="module")
def default_server(values: dict[str, str], env: dict[str, str]) -> Iterator[str]:
    """`host:port` of the page's default command, running."""
    text = render(PAGE.kitchen, generate(PAGE.kitchen, values), "shell")
    with served(text, "127.0.0.1", int(values["port"]), env):
        yield f"127.0.0.1:{values['port']}"


def test_every_example_of_the_page_works(default_server: str) -> None:
    ran = run_examples(PAGE.text, default_server)
    assert len(ran) == 4
    assert [one for one in ran if not one.ok] == []
    chat, client, stream, metrics = (one.output for one in ran)
    assert "Paris" in chat
    assert "Paris" in client
    assert stream.count("data: ") >= 2
    assert "data: [DONE]" in stream
    assert "# HELP" in metrics


def test_the_metrics_page_lists_what_a_running_server_has(default_server: str) -> None:
    with urllib.request.urlopen(f"http://{default_server}/metrics") as answer:
        live = answer.read().decode()
    written = (ROOT / "docs/cookbook/metrics.prom").read_text(encoding="utf-8")
    heads = [line for line in live.splitlines() if re.match(r"# (HELP|TYPE) ", line)]
    assert written.splitlines() == heads, "run python bench/cookbook_smollm2.py --write"


@pytest.mark.parametrize("choices", CHOICES[1:], ids=lambda choices: " ".join(choices.values()))
def test_other_choices_start_and_answer(
    choices: dict[str, str], values: dict[str, str], env: dict[str, str]
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    made = generate(PAGE.kitchen, {**choices, **values, "port": str(port)})
    url = f"http://127.0.0.1:{port}/v1/completions"
    body = {"model": "default", "prompt": PREFIX, "max_tokens": 4, "temperature": 0}
    with served(render(PAGE.kitchen, made, "shell"), "127.0.0.1", port, env):
        first, second = (httpx.post(url, json=body, timeout=120, trust_env=False) for _ in "ab")
    assert first.raise_for_status().json()["choices"] == second.json()["choices"]
    if choices["prefix-cache"] == "report":
        assert second.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
