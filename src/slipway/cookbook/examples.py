"""Starts a page's command and runs the page's examples against it, as a reader would."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from slipway.cookbook.markdown import render
from slipway.errors import DeploymentError

# The address that pages write; replaced by the server's.
WRITTEN = "127.0.0.1:30000"
LIMIT_S = 120


@dataclass(frozen=True)
class Ran:
    """What one example did.

    Args:
        where: `file:line`.
        output: what it printed, errors last.
    """

    where: str
    ok: bool
    output: str


@contextmanager
def served(
    text: str, host: str, port: int, env: Mapping[str, str], limit_s: float = 180
) -> Iterator[None]:
    """Run a launch command as shell text until the block ends; enter it once `/health` is 200.

    Raises:
        DeploymentError: the command ended, or did not become healthy in time.
    """
    with tempfile.TemporaryFile() as log:
        started = subprocess.Popen(
            ["bash", "-c", text], env=dict(env), stdout=log, stderr=log, start_new_session=True
        )
        try:
            _wait(started, host, port, time.monotonic() + limit_s)
            yield
        except DeploymentError as error:
            log.seek(0)
            tail = log.read()[-2000:].decode(errors="replace")
            raise DeploymentError(f"{error.what}:\n{tail}", error.remedy) from None
        finally:
            if started.poll() is None:
                os.killpg(started.pid, signal.SIGTERM)
            try:
                started.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(started.pid, signal.SIGKILL)
                started.wait()


def _wait(started: subprocess.Popen[bytes], host: str, port: int, until: float) -> None:
    while started.poll() is None:
        if time.monotonic() > until:
            raise DeploymentError("the server did not become healthy in time", "see its log")
        connection = http.client.HTTPConnection(host, port, timeout=5)
        try:
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass  # not listening yet: asked again until the limit
        finally:
            connection.close()
        time.sleep(0.1)
    raise DeploymentError(f"the server ended with {started.returncode}", "see its log")


def run_examples(path: Path, address: str, python: str = sys.executable) -> list[Ran]:
    """Run every block that is marked `run` (```bash run, ```python run), in order.

    Args:
        path: a page's Markdown.
        address: `host:port` of a running server.
    """
    made = render(path.read_text(encoding="utf-8"), lambda href: href)
    ran = []
    for info, text, line in made.code:
        language, _, mark = info.partition(" ")
        if mark != "run":
            continue
        program = [python, "-c"] if language == "python" else ["bash", "-euo", "pipefail", "-c"]
        code = text.replace(WRITTEN, address)
        try:
            done = subprocess.run(
                [*program, code],
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                env={**os.environ, "NO_PROXY": "127.0.0.1,localhost"},
            )
        except subprocess.TimeoutExpired:
            ran.append(Ran(f"{path}:{line}", False, f"did not end within {LIMIT_S} s"))
            continue
        ok = done.returncode == 0 and bool(done.stdout.strip())
        ran.append(Ran(f"{path}:{line}", ok, done.stdout + done.stderr))
    return ran
