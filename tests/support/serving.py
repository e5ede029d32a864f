"""A `keel serve` process as a test sees it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx


def wait_for(condition: Callable[[], Any], what: str, seconds: float = 30.0) -> Any:
    """The first true value of `condition`; AssertionError when it stays false."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds} s: {what}")


@dataclass
class Server:
    """A process, its log, and where it listens (the kernel chooses the port)."""

    process: subprocess.Popen[bytes]
    log: Path
    url: str = ""

    @classmethod
    def launch(cls, model: str, flags: list[str], env: dict[str, str], log: Path) -> Server:
        command = [sys.executable, "-m", "keel", "serve", "--model-path", model, "--port", "0"]
        with log.open("wb") as sink:
            process = subprocess.Popen(command + flags, stdout=sink, stderr=sink, env=env)
        return cls(process, log)

    def text(self) -> str:
        return self.log.read_text()

    def wait_listening(self) -> None:
        def look() -> re.Match[str] | None:
            assert self.process.poll() is None, self.text()
            return re.search(r"listening on (http://\S+:\d+)", self.text())

        self.url = wait_for(look, "the server listens", 120)[1]

    def wait_ready(self) -> None:
        self.wait_listening()

        def look() -> bool:
            assert self.process.poll() is None, self.text()
            return httpx.get(f"{self.url}/health").status_code == 200

        wait_for(look, "the server is ready", 120)

    def state(self) -> dict[str, Any]:
        """The scheduler as it is now."""
        info = httpx.get(f"{self.url}/get_server_info", timeout=30).json()
        return dict(info["internal_states"][0])

    def scheduler_pid(self) -> int:
        return int(httpx.get(f"{self.url}/get_server_info").json()["scheduler_pid"])

    def is_empty(self) -> bool:
        state = self.state()
        return not (
            state["num_running_reqs"] or state["num_waiting_reqs"] or state["num_used_tokens"]
        )

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
