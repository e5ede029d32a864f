"""Several router processes on one port: starts them, owns the worker list, sums the metrics."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import socket
import sys
import time

import msgspec

from keel.args.router import RouterArgs
from keel.router.discovery.sources import Discovery
from keel.router.fleet import Change, Fleet
from keel.router.load import LoadBoard, shared_memory
from keel.router.messages import Done, Please, Serving, Tell, Told, packed, receive
from keel.router.metrics import Snapshot, summed
from keel.router.process import ProcessSpec
from keel.router.worker import WorkerSpec
from keel.sockets import listen

log = logging.getLogger("keel.router")

_SNAPSHOT_SECONDS = 2.0
# A process that dies at once is not started again faster than this.
_RESTART_SECONDS = 1.0


class _Child:
    """A router process, seen from the supervisor."""

    def __init__(self, process: asyncio.subprocess.Process, writer: asyncio.StreamWriter) -> None:
        self.process, self.writer = process, writer
        self.asked: dict[int, asyncio.Future[Snapshot]] = {}
        self.serving = asyncio.Event()


class Supervisor:
    """Keeps `args.workers` processes serving.

    What they share: the port (SO_REUSEPORT; the kernel spreads connections), the worker list (owned
    here, told in one order to all), the load per worker (a board in shared memory), and at each
    scrape their metrics. What each has for itself: breakers, health checks, prefix trees, the turn
    of round robin.
    """

    def __init__(self, args: RouterArgs, argv: list[str], specs: list[WorkerSpec]) -> None:
        self._args, self._argv, self._specs = args, argv, specs
        self._children: dict[int, _Child] = {}
        self._tickets = itertools.count(1)
        self._retired = Snapshot()  # what processes that ended had counted, as last heard
        self._last: dict[int, Snapshot] = {}
        self._ending = asyncio.Event()

    async def run(self) -> None:
        """Run until a signal.

        Raises:
            AddressInUseError
        """
        from keel.router.launch import signalled

        args = self._args
        # Bound but not listening: keeps the port ours while processes come and go.
        anchor = listen(args.host, args.port, shared=True, backlog=None)
        self._port = anchor.getsockname()[1]
        self._memory = shared_memory(args.workers)
        board = LoadBoard(args.workers, None, self._memory)
        self._fleet = Fleet(board, self._tell, args.drain_timeout_secs)
        for spec in self._specs:
            self._fleet.add(spec, "flags")
        discovery = Discovery(args, self._fleet)
        keepers = [asyncio.create_task(self._keep(index)) for index in range(args.workers)]
        try:
            async with discovery.running():
                await signalled(discovery.look_again)
        finally:
            self._ending.set()
            for child in self._children.values():
                with contextlib.suppress(ProcessLookupError):
                    child.process.terminate()
            await asyncio.gather(*keepers)
            anchor.close()
            os.close(self._memory)

    def _tell(self, change: Change) -> None:
        for child in self._children.values():
            child.writer.write(packed(change))

    async def _keep(self, index: int) -> None:
        """Run one process, again and again, until the end."""
        while not self._ending.is_set():
            started = time.monotonic()
            await self._run_one(index)
            if self._ending.is_set():
                return
            log.error("router process %d ended; starting it again", index)
            await asyncio.sleep(max(0.0, started + _RESTART_SECONDS - time.monotonic()))

    async def _run_one(self, index: int) -> None:
        ours, theirs = socket.socketpair()
        args = self._args
        spec = ProcessSpec(
            index, args.workers, theirs.fileno(), self._memory, self._port, self._argv
        )
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "keel.router.process",
                msgspec.json.encode(spec).decode(),
                pass_fds=(theirs.fileno(), self._memory),
                start_new_session=True,
            )
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        child = self._children[index] = _Child(process, writer)
        for change in self._fleet.history():
            writer.write(packed(change))
        try:
            await self._listen(index, child, reader)
            await process.wait()
        finally:
            del self._children[index]
            writer.close()
            if index in self._last:
                gone = self._last.pop(index)
                gone.workers, gone.in_flight, gone.connections, gone.waiting = {}, 0, 0, 0
                self._retired = summed((self._retired, gone))

    async def _listen(self, index: int, child: _Child, reader: asyncio.StreamReader) -> None:
        while (message := await receive(reader)) is not None:
            match message:
                case Serving():
                    child.serving.set()
                case Told(ticket, snapshot):
                    self._last[index] = snapshot
                    future = child.asked.pop(ticket, None)
                    if future is not None and not future.done():
                        future.set_result(snapshot)
                case Please(verb="snapshot"):
                    # In a task of its own: this very process must answer meanwhile.
                    task = asyncio.create_task(self._answer_snapshot(child, message.ticket))
                    task.add_done_callback(lambda done: done.exception())
                case Please():
                    child.writer.write(packed(self._do(message)))
                case _:
                    raise AssertionError(f"a process does not say {message}")

    def _do(self, please: Please) -> Done:
        fleet = self._fleet
        try:
            match please.verb:
                case "add" if please.spec is not None:
                    fleet.add(please.spec)
                    return Done(please.ticket)
                case "drain":
                    return Done(please.ticket, fleet.drain(please.url))
                case "remove":
                    return Done(please.ticket, fleet.remove(please.url))
        except ValueError as error:
            return Done(please.ticket, error=str(error))
        raise AssertionError(f"a process does not ask for {please.verb}")

    async def _answer_snapshot(self, child: _Child, ticket: int) -> None:
        snapshot = await self.snapshot()
        child.writer.write(packed(Done(ticket, snapshot=snapshot)))

    async def snapshot(self) -> Snapshot:
        """The metrics of all processes, those that ended too; one that hangs is left out."""
        futures = []
        for child in self._children.values():
            if child.serving.is_set():
                ticket = next(self._tickets)
                future: asyncio.Future[Snapshot] = asyncio.get_running_loop().create_future()
                child.asked[ticket] = future
                child.writer.write(packed(Tell(ticket)))
                futures.append(future)
        if futures:
            await asyncio.wait(futures, timeout=_SNAPSHOT_SECONDS)
        return summed((self._retired, *(future.result() for future in futures if future.done())))
