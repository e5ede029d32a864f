"""Runs the examples of a page against a server, as a reader would."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from slipway.cookbook.markdown import render

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
