"""One of several router processes; `python -m keel.router.process`, started by the supervisor."""

from __future__ import annotations

import asyncio
import itertools
import signal
import socket
import sys
from collections.abc import Sequence

import msgspec
import uvloop

from keel.args.router import RouterArgs, parse
from keel.router.fleet import Added, Drained, Removed, apply_change
from keel.router.load import LoadBoard
from keel.router.messages import Done, Message, Please, Serving, Tell, Told, packed, receive
from keel.router.metrics import Snapshot
from keel.router.router import Router
from keel.router.serving import serving
from keel.router.worker import WorkerSpec
from keel.sockets import listen


class ProcessSpec(msgspec.Struct, frozen=True):
    """What a process is told at its start.

    Args:
        control, board: descriptors, of the socket to the supervisor and of the load board.
        port: to listen on, with others.
        argv: the router's command line.
    """

    index: int
    processes: int
    control: int
    board: int
    port: int
    argv: Sequence[str]


class RemoteControl:
    """A `Control` that asks the supervisor."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._tickets = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Done]] = {}

    def answered(self, done: Done) -> None:
        """The supervisor answered."""
        future = self._waiting.pop(done.ticket, None)
        if future is not None and not future.done():
            future.set_result(done)

    async def _ask(self, verb: str, spec: WorkerSpec | None = None, url: str = "") -> Done:
        ticket = next(self._tickets)
        future = self._waiting[ticket] = asyncio.get_running_loop().create_future()
        self._writer.write(packed(Please(ticket, verb, spec, url)))
        done: Done = await future
        if done.error:
            raise ValueError(done.error)
        return done

    async def add(self, spec: WorkerSpec) -> None:
        """As `Control.add`."""
        await self._ask("add", spec=spec)

    async def drain(self, url: str) -> bool:
        """As `Control.drain`."""
        return (await self._ask("drain", url=url)).found

    async def remove(self, url: str) -> bool:
        """As `Control.remove`."""
        return (await self._ask("remove", url=url)).found

    async def snapshot(self) -> Snapshot:
        """As `Control.snapshot`."""
        return (await self._ask("snapshot")).snapshot or Snapshot()


async def _run(spec: ProcessSpec, args: RouterArgs) -> None:
    from keel.router.launch import make_router

    router = make_router(args, LoadBoard(spec.processes, spec.index, spec.board))
    reader, writer = await asyncio.open_unix_connection(sock=socket.socket(fileno=spec.control))
    control = RemoteControl(writer)
    loop = asyncio.get_running_loop()
    ending = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ending.set)
    listening = asyncio.create_task(_listen(reader, writer, router, control, ending))
    listener = listen(args.host, spec.port, shared=True)
    async with serving(router, control, listener):
        writer.write(packed(Serving()))
        await ending.wait()
    listening.cancel()


async def _listen(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    router: Router,
    control: RemoteControl,
    ending: asyncio.Event,
) -> None:
    """Do what the supervisor says; end when it is gone."""
    while (message := await receive(reader)) is not None:
        _heed(message, writer, router, control)
    ending.set()


def _heed(
    message: Message, writer: asyncio.StreamWriter, router: Router, control: RemoteControl
) -> None:
    match message:
        case Added() | Drained() | Removed():
            apply_change(router.table, message)
        case Done():
            control.answered(message)
        case Tell(ticket):
            writer.write(packed(Told(ticket, router.snapshot())))
        case _:
            raise AssertionError(f"a process is not told {message}")


def main() -> None:
    """Run as told on the command line: one word of JSON."""
    from keel.router.launch import set_up_logging

    spec = msgspec.json.decode(sys.argv[1], type=ProcessSpec)
    args = parse(spec.argv)
    set_up_logging(args.log_level)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor says when
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(spec, args))


if __name__ == "__main__":
    main()
