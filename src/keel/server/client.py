"""The HTTP process's side of the scheduler: its process, and a stream of tokens per request."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable

import msgspec
import zmq
import zmq.asyncio

from keel.args import ServerArgs
from keel.errors import EngineDiedError, KeelError
from keel.messages import (
    Abort,
    Answer,
    End,
    Failed,
    Finish,
    FlushCache,
    Generate,
    GetStats,
    Ready,
    SamplingParams,
    Shutdown,
    Stats,
    StepDone,
    Tokens,
    ToScheduler,
    ToServer,
)

# OpenMP's threads spin at barriers by default. Where other processes want the same cores (this one
# does), each barrier then costs a time slice: at a load of 7 on 2 cores SmolLM2-135M decoded 0.7
# tokens/s spinning and 10.3 sleeping.
_ENVIRONMENT = {"OMP_WAIT_POLICY": "passive"}


class StartupError(KeelError):
    """What the scheduler could not do, as it told it."""


class SchedulerClient:
    """Starts the scheduler process, sends requests, hands out their tokens.

    `launch` may run before there is an event loop, so that the model loads while the rest of the
    server starts; `connect` needs one.
    """

    def __init__(self, args: ServerArgs) -> None:
        self._args = args
        self._folder = tempfile.mkdtemp(prefix="keel-")
        self._process: subprocess.Popen[bytes] | None = None
        self._streams: dict[str, asyncio.Queue[Tokens]] = {}
        self._answers: dict[int, asyncio.Future[Answer]] = {}
        self._tickets = itertools.count(1)
        self._failure: Failed | None = None
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(ToServer)
        self._tasks: list[asyncio.Task[None]] = []
        self._rates: deque[tuple[float, int]] = deque()
        self.ready: Ready | None = None
        self.stats = Stats()
        self.last_heard = time.monotonic()
        self.dead = asyncio.Event()

    def launch(self) -> None:
        """Start the process."""
        spec = {
            "args": dataclasses.asdict(self._args),
            "inbound": self._address("to-scheduler"),
            "outbound": self._address("to-server"),
            "parent": os.getpid(),
            "launched": time.monotonic(),  # one clock for all processes of a machine
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "keel.scheduler.process"],
            stdin=subprocess.PIPE,
            start_new_session=True,
            env={**_ENVIRONMENT, **os.environ},
        )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died already; `dead` will say so
            self._process.stdin.write(json.dumps(spec).encode())
            self._process.stdin.close()

    def connect(self) -> None:
        """Open the sockets and begin to listen; inside an event loop."""
        context = zmq.asyncio.Context.instance()
        self._out = context.socket(zmq.PUSH)
        self._in = context.socket(zmq.PULL)
        for socket, name in ((self._out, "to-scheduler"), (self._in, "to-server")):
            socket.set_hwm(0)
            socket.bind(self._address(name))
        self._tasks = [
            asyncio.create_task(self._listen()),
            asyncio.create_task(self._watch()),
        ]

    @property
    def pid(self) -> int | None:
        """Of the scheduler process."""
        return self._process.pid if self._process else None

    @property
    def is_serving(self) -> bool:
        """The model is loaded and the scheduler lives."""
        return self.ready is not None and not self.dead.is_set()

    @property
    def num_streams(self) -> int:
        """Requests that somebody waits for."""
        return len(self._streams)

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens a second over the last seconds; 0 when nothing was generated."""
        now = time.monotonic()
        while self._rates and now - self._rates[0][0] > 5.0:
            self._rates.popleft()
        if len(self._rates) < 2 or now - self._rates[-1][0] > 2.0:
            return 0.0
        (start, first), (stop, last) = self._rates[0], self._rates[-1]
        return (last - first) / (stop - start) if stop > start else 0.0

    async def generate(
        self, rid: str, input_ids: list[int], params: SamplingParams
    ) -> AsyncGenerator[Tokens]:
        """The tokens of one request as they come; the last item has `finish`.

        Whoever stops listening early ends the request: it is aborted when the iterator is closed.
        """
        if self.dead.is_set():
            yield Tokens(rid, [], self._gone())
            return
        if rid in self._streams:
            message = f"request {rid!r} is running already"
            yield Tokens(rid, [], Finish("error", message=message, status=400))
            return
        queue = self._streams[rid] = asyncio.Queue()
        finished = False
        try:
            await self._send(Generate(rid, input_ids, params))
            while not finished:
                tokens = await queue.get()
                finished = tokens.finish is not None
                yield tokens
        finally:
            del self._streams[rid]
            if not finished:
                self._send_soon(End(rid))

    async def abort(self, prefix: str) -> None:
        """End the requests whose id begins with `prefix`."""
        await self._send(Abort(prefix))

    async def flush_cache(self) -> bool:
        """Empty the prefix cache; False while requests are there."""
        return (await self._ask(lambda ticket: FlushCache(ticket))).ok

    async def get_stats(self) -> Stats:
        """The scheduler as it is now."""
        return (await self._ask(lambda ticket: GetStats(ticket))).stats

    async def stop(self) -> None:
        """End the process, politely first."""
        for task in self._tasks:
            task.cancel()
        if self._process and self._process.poll() is None:
            with contextlib.suppress(zmq.ZMQError):
                await self._out.send(self._encoder.encode(Shutdown()), zmq.NOBLOCK)
            for _ in range(40):
                if self._process.poll() is not None:
                    break
                await asyncio.sleep(0.05)
        self.kill()
        zmq.asyncio.Context.instance().destroy(linger=0)

    def kill(self) -> None:
        """End the process at once and remove the sockets' folder."""
        if self._process and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def death(self) -> KeelError:
        """Why the scheduler is dead, for people."""
        if self._failure:
            error = StartupError(self._failure.what, self._failure.remedy)
            # A subclass per failure lives in the other process; the exit code came along.
            error.exit_code = self._failure.exit_code  # type: ignore[misc]
            return error
        code = self._process.returncode if self._process else 0
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return EngineDiedError(
            f"the scheduler process ended with {how}",
            "see its log above; SIGKILL often means that memory ran out",
        )

    def _address(self, name: str) -> str:
        return f"ipc://{self._folder}/{name}"

    def _gone(self) -> Finish:
        return Finish("error", message="the scheduler process is gone", status=500)

    async def _send(self, message: ToScheduler) -> None:
        await self._out.send(self._encoder.encode(message))

    def _send_soon(self, message: ToScheduler) -> None:
        """Send from a place that must not wait: the task that it runs in may be cancelled."""
        with contextlib.suppress(RuntimeError):  # no loop any more
            task = asyncio.get_running_loop().create_task(self._send(message))
            self._tasks.append(task)
            task.add_done_callback(self._tasks.remove)

    async def _ask(self, make: Callable[[int], ToScheduler]) -> Answer:
        ticket = next(self._tickets)
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._answers[ticket] = future
        try:
            await self._send(make(ticket))
            return await future
        finally:
            del self._answers[ticket]

    async def _listen(self) -> None:
        while True:
            message = self._decoder.decode(await self._in.recv())
            self.last_heard = time.monotonic()
            match message:
                case StepDone():
                    self._note(message.stats)
                    for tokens in message.tokens:
                        if queue := self._streams.get(tokens.rid):
                            queue.put_nowait(tokens)
                case Answer():
                    self._note(message.stats)
                    future = self._answers.get(message.ticket)
                    if future and not future.done():
                        future.set_result(message)
                case Ready():
                    self.ready = message
                case Failed():
                    self._failure = message

    def _note(self, stats: Stats) -> None:
        self.stats = stats
        self._rates.append((time.monotonic(), stats.generated_tokens_total))

    async def _watch(self) -> None:
        """Notice that the process is dead; whoever waits for it is told."""
        assert self._process is not None
        while self._process.poll() is None:
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.1)  # its last message may still be on the way
        self.dead.set()
        for rid, queue in self._streams.items():
            queue.put_nowait(Tokens(rid, [], self._gone()))
        for future in self._answers.values():
            if not future.done():
                future.set_exception(self.death())
