"""`keel router` as a program."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from support.routing import soon, until

ROOT = Path(__file__).parents[2]


class Command:
    """A router that runs as a program."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.port = 0
        self.text = ""

    async def read_on(self) -> None:
        """Gather what it says."""
        assert self.process.stderr is not None
        while line := await self.process.stderr.readline():
            self.text += line.decode()

    def children(self) -> list[int]:
        """Process ids of the router processes."""
        pid = self.process.pid
        path = Path(f"/proc/{pid}/task/{pid}/children")
        return [int(word) for word in path.read_text().split()]


@contextlib.asynccontextmanager
async def command(*words: str, processes: int = 1) -> AsyncIterator[Command]:
    """Start it; it serves when the block begins, and is ended after it."""
    argv = [sys.executable, "-m", "keel", "router", "--port", "0", "--workers", str(processes)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    process = await asyncio.create_subprocess_exec(
        *argv, *words, stderr=asyncio.subprocess.PIPE, env=environment
    )
    running = Command(process)
    reading = asyncio.ensure_future(running.read_on())
    try:
        await until(lambda: running.text.count("listening on") >= processes)
        found = re.search(r"listening on http://127.0.0.1:(\d+)", running.text)
        assert found is not None
        running.port = int(found[1])
        yield running
    finally:
        if process.returncode is None:
            process.terminate()
        await soon(process.wait())
        await soon(reading)
