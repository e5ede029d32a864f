"""Workers that misbehave on request, a router in this process, and clients that can leave."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from keel.args.router import parse
from keel.router.fleet import Change, Fleet, apply_change
from keel.router.launch import LocalControl, make_router, static_specs
from keel.router.load import LoadBoard
from keel.router.router import Router
from keel.router.serving import serving
from keel.router.worker import WorkerSpec
from keel.sockets import listen

T = TypeVar("T")
PATIENCE = 10.0
CHAT = "/v1/chat/completions"


async def soon(work: Awaitable[T]) -> T:
    """Await something that is to happen within the patience of a test."""
    async with asyncio.timeout(PATIENCE):
        return await work


async def until(condition: Callable[[], object]) -> None:
    """Let the loop run until a condition holds."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.002)


@dataclass(frozen=True)
class Seen:
    """A request as a worker saw it."""

    method: str
    target: str
    headers: dict[str, str]
    raw: bytes

    @property
    def json(self) -> Any:
        """The body."""
        return json.loads(self.raw)


Behaviour = Callable[
    ["FakeWorker", Seen, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]
]


@dataclass
class FakeWorker:
    """A real HTTP/1.1 server. What it does with a generation request is `behaviour`.

    Attributes:
        seen: generation requests and passed-through ones, in order.
        aborts: bodies of /abort_request; `abort_headers` beside them.
        events: `request` and `abort` as they come.
        left: requests whose connection the router ended while they were served.
        in_hand: generation requests being served.
    """

    behaviour: Behaviour
    models: tuple[str, ...] = ("tiny",)
    port: int = 0
    healthy: bool = True
    abort_status: int = 200
    hang_models: bool = False
    info: dict[str, Any] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    aborts: list[Any] = field(default_factory=list)
    abort_headers: list[dict[str, str]] = field(default_factory=list)
    events: asyncio.Queue[tuple[str, Any]] = field(default_factory=asyncio.Queue)
    left: int = 0
    in_hand: int = 0
    connections: int = 0
    _server: asyncio.Server | None = None
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def url(self) -> str:
        """As routers know it."""
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listen, on the same port as before if there was one."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def kill(self) -> None:
        """Be gone: nothing listens, every connection is reset."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in tuple(self._writers):
            writer.transport.abort()
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            while (seen := await read_request(reader)) is not None:
                await self._answer(seen, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(
        self, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        path = seen.target.partition("?")[0]
        if path == "/health":
            await reply(writer, 200 if self.healthy else 503, b"")
        elif path == "/v1/models":
            if self.hang_models:
                await reader.read()
                return
            data = [{"id": model, "object": "model"} for model in self.models]
            await reply(writer, 200, json.dumps({"data": data}).encode())
        elif path == "/server_info":
            await reply(writer, 200, json.dumps(self.info).encode())
        elif path == "/abort_request":
            self.aborts.append(seen.json)
            self.abort_headers.append(seen.headers)
            self.events.put_nowait(("abort", seen.json))
            await reply(writer, self.abort_status, b"")
        else:
            self.seen.append(seen)
            self.events.put_nowait(("request", seen))
            self.in_hand += 1
            try:
                await self.behaviour(self, seen, reader, writer)
            finally:
                self.in_hand -= 1

    async def event(self, kind: str) -> Any:
        """The next thing that happens, which is of that kind."""
        found, value = await soon(self.events.get())
        assert found == kind, f"{found}, not {kind}: {value}"
        return value


async def read_request(reader: asyncio.StreamReader) -> Seen | None:
    """The next request of a connection; None at its end."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head[:-4].decode("latin-1").split("\r\n")
    method, target, version = first.split(" ")
    if version != "HTTP/1.1":
        return None
    headers = {}
    for line in lines:
        name, _, value = line.partition(": ")
        headers[name.lower()] = value
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Seen(method, target, headers, body)


async def reply(
    writer: asyncio.StreamWriter,
    status: int,
    body: bytes,
    content_type: str = "application/json",
    extra: str = "",
) -> None:
    """A complete answer."""
    writer.write(
        f"HTTP/1.1 {status} X\r\ncontent-type: {content_type}\r\n{extra}"
        f"content-length: {len(body)}\r\n\r\n".encode()
        + body
    )
    await writer.drain()


def begin_stream(writer: asyncio.StreamWriter, status: int = 200) -> None:
    """The head of a stream."""
    writer.write(
        f"HTTP/1.1 {status} X\r\ncontent-type: text/event-stream\r\n"
        "transfer-encoding: chunked\r\n\r\n".encode()
    )


def chunk(data: bytes) -> bytes:
    """One chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


END = b"0\r\n\r\n"
ANSWER = b'{"id":"x","choices":[{"index":0,"message":{"role":"assistant","content":"hi"}}]}'
EVENTS = [b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n', b"data: [DONE]\n\n"]


async def normal(
    _: FakeWorker, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """A JSON answer, or two events."""
    if seen.raw.startswith(b"{") and seen.json.get("stream") is True:
        begin_stream(writer)
        for event in EVENTS:
            writer.write(chunk(event))
        writer.write(END)
        await writer.drain()
    else:
        await reply(writer, 200, ANSWER)


async def hang(
    worker: FakeWorker, _: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Accept and never answer."""
    await until_left(worker, reader)


async def until_left(worker: FakeWorker, reader: asyncio.StreamReader) -> None:
    """Wait for the router to end the connection."""
    with contextlib.suppress(ConnectionError):
        await reader.read()
    worker.left += 1
    raise ConnectionResetError


async def stall(
    worker: FakeWorker, _: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Begin a stream and fall silent."""
    begin_stream(writer)
    writer.write(chunk(EVENTS[0]))
    await writer.drain()
    await until_left(worker, reader)


def fixed(status: int, body: bytes, extra: str = "", stream: bool = False) -> Behaviour:
    """Always the same answer."""

    async def behave(
        _: FakeWorker, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if stream:
            begin_stream(writer, status)
            writer.write(chunk(body) + END)
            await writer.drain()
        else:
            await reply(writer, status, body, extra=extra)

    return behave


def raw(*pieces: bytes, then_reset: bool = False) -> Behaviour:
    """Bytes as they are, then the connection's end."""

    async def behave(
        _: FakeWorker, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        if then_reset:
            writer.transport.abort()
        raise ConnectionResetError

    return behave


@contextlib.asynccontextmanager
async def workers(*behaviours: Behaviour, **fields: Any) -> AsyncIterator[list[FakeWorker]]:
    """A worker for each behaviour."""
    started = [FakeWorker(behaviour, **fields) for behaviour in behaviours]
    for worker in started:
        await worker.start()
    try:
        yield started
    finally:
        for worker in started:
            await worker.kill()


@dataclass
class Running:
    """A router that serves on `port`."""

    router: Router
    fleet: Fleet
    port: int

    def worker(self, fake: FakeWorker) -> Any:
        """What the router knows of a worker."""
        found = self.router.table.get(fake.url)
        assert found is not None
        return found


@contextlib.asynccontextmanager
async def routing(
    *fakes: FakeWorker, flags: str = "", specs: list[WorkerSpec] | None = None, log: int = 2
) -> AsyncIterator[Running]:
    """A router in this event loop, round robin over the workers unless the flags say otherwise."""
    words = ["--port", "0", "--policy", "round_robin", "--shutdown-grace-period-secs", "0"]
    words += ["--disable-health-check", *flags.split()]
    if fakes and specs is None:
        words += ["--worker-urls", *(fake.url for fake in fakes)]
    args = parse(words)
    listener = listen(args.host, args.port)
    board = LoadBoard()
    router = make_router(args, board)
    router.access_log._descriptor = log

    def tell(change: Change) -> None:
        apply_change(router.table, change)

    fleet = Fleet(board, tell, args.drain_timeout_secs)
    for spec in static_specs(args) if specs is None else specs:
        fleet.add(spec, "flags")
    port = listener.getsockname()[1]
    async with serving(router, LocalControl(router, fleet), listener):
        await until(lambda: all(worker.models for worker in router.table) or not fakes)
        yield Running(router, fleet, port)


@dataclass
class Reply:
    """An answer as a client saw it.

    Attributes:
        whole: it ended as its head said.
    """

    status: int
    headers: dict[str, str]
    body: bytes
    whole: bool

    @property
    def json(self) -> Any:
        """The body."""
        return json.loads(self.body)

    @property
    def error_code(self) -> str:
        """Of an error of OpenAI's shape."""
        return str(self.json["error"]["code"])


class Client:
    """One connection to a router."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, port: int) -> Client:
        """Connect."""
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=2**25))

    def send(
        self,
        path: str = CHAT,
        body: bytes | dict[str, Any] | None = None,
        method: str = "POST",
        headers: dict[str, str] | None = None,
        version: str = "1.1",
    ) -> None:
        """Send a request."""
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        lines = [f"{method} {path} HTTP/{version}", "host: router"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        if data is not None:
            lines.append(f"content-length: {len(data)}")
        self.writer.write("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + (data or b""))

    async def head(self) -> tuple[int, dict[str, str]]:
        """The head of the answer."""
        text = (await soon(self.reader.readuntil(b"\r\n\r\n"))).decode("latin-1")
        first, *lines = text[:-4].split("\r\n")
        pairs = (line.partition(": ") for line in lines)
        return int(first.split(" ")[1]), {name.lower(): value for name, _, value in pairs}

    async def chunk(self) -> bytes:
        """The next chunk of a chunked answer; empty at its end."""
        size = int(await soon(self.reader.readuntil(b"\r\n")), 16)
        return (await soon(self.reader.readexactly(size + 2)))[:-2]

    async def reply(self, method: str = "POST") -> Reply:
        """The whole answer, or as much as there is."""
        status, headers = await self.head()
        parts, whole = [], True
        try:
            if headers.get("transfer-encoding") == "chunked":
                while part := await self.chunk():
                    parts.append(part)
            elif method == "HEAD" or status in (204, 304):
                pass
            elif "content-length" in headers:
                parts.append(await soon(self.reader.readexactly(int(headers["content-length"]))))
            else:
                parts.append(await soon(self.reader.read()))
        except asyncio.IncompleteReadError as error:
            whole = False
            parts.append(error.partial)
        except ConnectionError:
            whole = False
        return Reply(status, headers, b"".join(parts), whole)

    def leave(self) -> None:
        """Go away without a word."""
        self.writer.transport.abort()


async def ask(
    port: int,
    body: bytes | dict[str, Any] | None = None,
    path: str = CHAT,
    method: str = "POST",
    headers: dict[str, str] | None = None,
) -> Reply:
    """A request on a connection of its own, and its answer."""
    client = await Client.open(port)
    try:
        client.send(path, body, method, headers)
        return await client.reply(method)
    finally:
        client.leave()
