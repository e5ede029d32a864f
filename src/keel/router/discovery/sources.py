"""Looks at each source of workers again and again, and reconciles the fleet with what it says."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec

from keel.args.router import RouterArgs
from keel.errors import ArgumentError
from keel.router.discovery.docker import DockerSource
from keel.router.fleet import Fleet
from keel.router.worker import WorkerSpec

log = logging.getLogger("keel.router")


class SourceError(Exception):
    """A source cannot say now who the workers are."""


Source = Callable[[], Awaitable[list[WorkerSpec]]]


class Discovery:
    """All sources of a router.

    A source that fails changes nothing: a typo in the worker file, or a DNS server that is away,
    must not take workers out of service.
    """

    def __init__(self, args: RouterArgs, fleet: Fleet) -> None:
        self._fleet, self._interval = fleet, args.discovery_interval_secs
        self._sources: dict[str, Source] = {}
        self._problems: dict[str, str] = {}
        self.look_again = asyncio.Event()
        if args.worker_file is not None:
            path = Path(args.worker_file)
            self._sources["worker file"] = lambda: _in_thread(read_file, path)
        if args.discover_dns is not None:
            host, port = _host_and_port(args.discover_dns)
            self._sources["dns"] = lambda: resolve(host, port)
        if args.discover_docker is not None:
            docker = DockerSource(args.docker_socket, args.discover_docker)
            self._sources["docker"] = docker.workers

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Discover, and let drained workers go, while the block runs."""
        for name in self._sources:
            await self.look(name)
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(self._tick())]
        if self._sources:
            tasks.append(loop.create_task(self._look_for_ever()))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(0.05)
            self._fleet.tick()

    async def _look_for_ever(self) -> None:
        while True:
            self.look_again.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval):
                    await self.look_again.wait()
            for name in self._sources:
                await self.look(name)

    async def look(self, name: str) -> None:
        """Look at one source once."""
        try:
            specs = await self._sources[name]()
        except (SourceError, OSError) as error:
            problem = str(error)
            if self._problems.get(name) != problem:
                log.warning("%s: %s; the workers stay as they are", name, problem)
            self._problems[name] = problem
            return
        self._problems.pop(name, None)
        self._fleet.reconcile(name, specs)


async def _in_thread(read: Callable[[Path], list[WorkerSpec]], path: Path) -> list[WorkerSpec]:
    return await asyncio.to_thread(read, path)


def read_file(path: Path) -> list[WorkerSpec]:
    """A JSON list of URLs, or of objects with the fields of `WorkerSpec`.

    Raises:
        SourceError: it cannot be read, or is something else.
    """
    try:
        found = msgspec.json.decode(path.read_bytes(), type=list[str | WorkerSpec])
        return [WorkerSpec(one) if isinstance(one, str) else one for one in found]
    except (OSError, msgspec.MsgspecError, ValueError) as error:
        raise SourceError(f"{path}: {error}") from None


async def resolve(host: str, port: int) -> list[WorkerSpec]:
    """A worker for each address of a name.

    Raises:
        SourceError: there is no answer. A name without addresses is one too: that is what a DNS
            server that restarts says.
    """
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise SourceError(f"{host}: {error.strerror}") from None
    hosts = sorted({str(address[0]) for *_, address in found})
    return [WorkerSpec(f"http://[{h}]:{port}" if ":" in h else f"http://{h}:{port}") for h in hosts]


def _host_and_port(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ArgumentError(
            f"--discover-dns {text} is not HOST:PORT", "give a name like engines.internal:30000"
        )
    return host.strip("[]"), int(port)
