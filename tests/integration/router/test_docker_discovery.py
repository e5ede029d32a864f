"""Containers of a real Docker Engine are workers while they run."""

from __future__ import annotations

import asyncio
import contextlib
import io
import shutil
import subprocess
import tarfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from keel.args.router import parse
from keel.router.discovery.sources import Discovery
from keel.router.worker import Role
from support.routing import routing, until

pytestmark = pytest.mark.docker


def docker(*words: str, data: bytes | None = None) -> str:
    done = subprocess.run(["docker", *words], input=data, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


@pytest.fixture
def image(tmp_path: Path) -> Iterator[str]:
    """An image with one program, which waits. No registry is asked: it is compiled here."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here to make the image's program")
    source, program = tmp_path / "wait.c", tmp_path / "wait"
    source.write_text("#include <unistd.h>\nint main(void) { for (;;) pause(); }\n")
    done = subprocess.run(
        [compiler, "-static", "-o", str(program), str(source)], capture_output=True, text=True
    )
    if done.returncode != 0:
        pytest.skip(f"no static C library here: {done.stderr.strip().splitlines()[-1]}")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(program, "wait")
    name = f"keel-router-test:{uuid.uuid4().hex[:12]}"
    docker("import", "-", name, data=buffer.getvalue())
    yield name
    docker("rmi", "-f", name)


async def test_containers_with_the_label_join_and_leave(image: str) -> None:
    label = f"keel.router.test={uuid.uuid4().hex}"
    words = ["--discover-docker", label, "--discovery-interval-secs", "0.1"]
    started: list[str] = []

    def run(*labels: str) -> str:
        flags = [word for one in labels for word in ("--label", one)]
        command = ["run", "-d", "--rm", *flags, image, "/wait"]
        started.append(docker(*command))
        form = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
        return docker("inspect", "-f", form, started[-1])

    async with routing() as running:
        table = running.router.table
        discovery = Discovery(parse([*words, "--pd-disaggregation"]), running.fleet)
        try:
            async with discovery.running():
                assert len(table) == 0
                more = ("keel.port=8000", "keel.role=prefill", "keel.bootstrap-port=8997")
                address = await asyncio.to_thread(run, label, *more)
                await asyncio.to_thread(run, "keel.router.test=another")
                await until(lambda: len(table) == 1)
                [worker] = table
                assert worker.url == f"http://{address}:8000"
                assert worker.spec.role is Role.PREFILL
                assert worker.spec.bootstrap_port == 8997
                await asyncio.to_thread(docker, "kill", started[0])
                await until(lambda: len(table) == 0)
        finally:
            for container in started:
                with contextlib.suppress(AssertionError):
                    docker("kill", container)


async def test_an_engine_that_is_away_takes_no_worker_out() -> None:
    words = ["--discover-docker", "x", "--docker-socket", "/nonexistent.sock"]
    async with routing() as running:
        discovery = Discovery(parse(words), running.fleet)
        await discovery.look("docker")
        assert "docker" in discovery._problems
