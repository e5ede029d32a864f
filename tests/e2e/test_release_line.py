"""A push in; an image that answers, and an archive that starts it: with the real parts.

One clone of HEAD goes through the push workflow, as a server's runner would run it, into a real
registry with a password. Its archive is taken from there, started by Compose on a real Docker
Engine, and asked; its greedy tokens are those of transformers on the same checkpoint.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from slipway.build.git import Checkout
from slipway.ci import dryrun
from slipway.image.descriptor import Descriptor
from slipway.image.registry import Registry
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
USER, PASSWORD, IMAGE = "robot", "pa55-of-the-robot", "team/keel"


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
    """One pushed release of the `cpu` variant, in a registry with a password.

    Attributes:
        tag: the image's immutable tag.
        docker_config: a folder for `DOCKER_CONFIG` with the registry's password.
    """

    clone: Path
    registry: str
    tag: str
    docker_config: Path
    log: str


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    """HEAD, cloned and pushed: act runs the push workflow, without Docker, from nothing."""
    folder = tmp_path_factory.mktemp("line")
    clone = folder / "clone"
    subprocess.run(["git", "clone", "--quiet", str(REPOSITORY), str(clone)], check=True)
    subprocess.run(["git", "checkout", "--quiet", "-B", "main"], cwd=clone, check=True)
    made = Checkout(clone)
    with registry(folder / "registry", USER, PASSWORD) as address:
        process = dryrun.start(
            made,
            "push",
            dryrun.push_event(made, "main", ""),
            variables={"SLIPWAY_REGISTRY": address, "SLIPWAY_IMAGE": IMAGE},
            secrets={"REGISTRY_USERNAME": USER, "REGISTRY_PASSWORD": PASSWORD},
            env={
                "SLIPWAY_PYTHON": sys.executable,
                **{name: value for name, value in os.environ.items() if name.startswith("PIP_")},
            },
            scratch=folder / "act",
        )
        log, _ = process.communicate(timeout=500)
        assert process.returncode == 0, log
        config = folder / "docker"
        config.mkdir()
        login = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        (config / "config.json").write_text(json.dumps({"auths": {address: {"auth": login}}}))
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DOCKER_CONFIG", str(config))
            tags = Registry(address).repository(IMAGE).tags()
        (tag,) = [tag for tag in tags if tag.startswith(f"main-{made.commit()[:9]}-ci-")]
        yield Line(clone, address, tag, config, log)


def test_a_push_of_the_cpu_variant_leaves_image_and_alias_and_builds_the_same_here(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(line.docker_config))
    images = Registry(line.registry).repository(IMAGE)
    pushed, alias = images.resolve(line.tag), images.resolve("main-latest")
    assert pushed is not None
    assert alias is not None
    assert alias.digest == pushed.digest
    assert "**full**: no deps image" in line.log
    assert PASSWORD not in line.log
    target = ("--registry", line.registry, "--repo", IMAGE)
    done = slipway("image", "build", *target, "--json", cwd=line.clone)
    built = json.loads(done.stdout)
    assert (built["plan"], built["digest"]) == ("fast", pushed.digest)


@pytest.mark.docker
def test_the_pushed_archive_starts_and_answers_like_transformers(
    line: Line, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_program("zstd", "zstd")
    monkeypatch.setenv("DOCKER_CONFIG", str(line.docker_config))
    name = f"local-cpu-single-{line.tag}"
    archives = Registry(line.registry).repository(f"{IMAGE}-deploy")
    found = archives.manifest(name)
    assert found is not None
    with (
        archives.open(Descriptor.from_json(json.loads(found[1])["layers"][0])) as blob,
        (tmp_path / "archive.tar.zst").open("wb") as file,
    ):
        shutil.copyfileobj(blob, file)
    subprocess.run(["tar", "--zstd", "-xf", "archive.tar.zst"], cwd=tmp_path, check=True)
    [folder] = [path for path in tmp_path.iterdir() if path.is_dir()]
    subprocess.run(["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=folder, check=True)
    image = Registry(line.registry).repository(IMAGE).resolve(line.tag)
    assert image is not None
    rendered = (folder / "dockerserve-single.yml").read_text()
    assert f"{line.registry}/{IMAGE}@{image.digest}" in rendered
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
