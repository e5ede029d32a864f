"""Source in; an image that answers, and an archive that starts it: with the real parts.

One clone of HEAD is built, pushed to a real registry, started from its unpacked archive by Compose
on a real Docker Engine, and asked; its greedy tokens are those of transformers on the same
checkpoint.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support import reference
from support.services import compose, free_port, registry, require_program, running

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

REPOSITORY = Path(__file__).resolve().parents[2]
PROMPTS = (
    "What is the capital of France?",
    "Write one sentence about the sea.",
    "Count from one to five in Spanish: uno,",
    "Explain why the sky is blue, in two sentences. 🌊",
)
NEW_TOKENS = 32


def slipway(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the clone's own slipway; fail with its output where it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "slipway", *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(cwd / "src")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"slipway {' '.join(words)}:\n{done.stdout}\n{done.stderr}"
    return done


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A command with its output kept."""
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True)


def ask(url: str, body: dict[str, Any]) -> Any:
    """POST JSON, give back JSON."""
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


def assert_answers_like_transformers(base: str, model: Path) -> None:
    """Chat text and native tokens of the server at `base` equal transformers' greedy ones."""
    _, tokenizer = reference.load(model)
    for prompt in PROMPTS:
        messages = [{"role": "user", "content": prompt}]
        ids = reference.chat_ids(model, messages)
        expected = reference.greedy(model, ids, NEW_TOKENS)
        native = ask(
            f"{base}/generate",
            {
                "input_ids": ids,
                "sampling_params": {"temperature": 0, "max_new_tokens": NEW_TOKENS},
            },
        )
        assert native["output_ids"] == expected, prompt
        chat = ask(
            f"{base}/v1/chat/completions",
            {
                "model": "default",
                "messages": messages,
                "temperature": 0,
                "max_tokens": NEW_TOKENS,
            },
        )
        choice = chat["choices"][0]
        assert choice["message"]["content"] == tokenizer.decode(expected, skip_special_tokens=True)
        assert chat["usage"]["prompt_tokens"] == len(ids)


@pytest.fixture(scope="module")
def model() -> Path:
    """SmolLM2-135M-Instruct, through the engine's own command."""
    done = subprocess.run(
        [sys.executable, "-m", "keel", "models", "fetch", "smollm2-135m"],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "src")},
        capture_output=True,
        text=True,
    )
    if done.returncode == 6:
        pytest.skip(f"the model cannot be fetched here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.splitlines()[-1])


@dataclass(frozen=True)
class Line:
    """One built, pushed and packed release."""

    clone: Path
    registry: str
    built: dict[str, Any]
    archive: Path


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    """HEAD, cloned, built without Docker, pushed to a real registry, and packed."""
    folder = tmp_path_factory.mktemp("line")
    clone = folder / "clone"
    subprocess.run(["git", "clone", "--quiet", str(REPOSITORY), str(clone)], check=True)
    with registry(folder / "registry") as address:
        target = ("--registry", address, "--repo", "team/keel")
        built = json.loads(slipway("image", "build", "--push", *target, "--json", cwd=clone).stdout)
        packed = json.loads(
            slipway("deploy", "pack", "local-cpu-single", *target, "--json", cwd=clone).stdout
        )
        yield Line(clone, address, built, clone / packed["archive"])


@pytest.mark.docker
def test_the_packed_archive_starts_and_answers_like_transformers(
    line: Line, model: Path, tmp_path: Path
) -> None:
    require_program("zstd", "zstd")
    subprocess.run(["tar", "--zstd", "-xf", line.archive, "-C", tmp_path], check=True)
    [folder] = [path for path in tmp_path.iterdir() if path.is_dir()]
    subprocess.run(["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=folder, check=True)
    rendered = (folder / "dockerserve-single.yml").read_text()
    assert f"{line.registry}/team/keel@{line.built['digest']}" in rendered
    port = free_port()
    (folder / ".env").write_text(f"MODEL_DIR={model.parent}\nMODEL={model.name}\nPORT={port}\n")
    # Of its own name: a deployment of this machine may be running under the file's.
    project = f"slipway-e2e-{port}"
    command = (*compose(), "-p", project, "-f", "dockerserve-single.yml")
    try:
        up = run(*command, "up", "--wait", "--wait-timeout", "300", cwd=folder)
        assert up.returncode == 0, f"{up.stderr}\n{run(*command, 'logs', cwd=folder).stdout}"
        try:
            assert_answers_like_transformers(f"http://127.0.0.1:{port}", model)
        except OSError as error:
            pytest.fail(f"{error}\n{run(*command, 'logs', cwd=folder).stdout}")
    finally:
        down = run(*command, "down", cwd=folder)
    assert down.returncode == 0, down.stderr


def test_keel_serve_without_a_container_answers_like_transformers(
    model: Path, tmp_path: Path
) -> None:
    port = free_port()
    command = [sys.executable, "-m", "keel", "serve", "--model-path", str(model)]
    with running(
        [*command, "--port", str(port)],
        f"http://127.0.0.1:{port}/health",
        120,
        tmp_path / "serve.log",
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "src")},
    ) as server:
        assert_answers_like_transformers(f"http://127.0.0.1:{port}", model)
        server.terminate()
        assert server.wait(20) == 0
