"""Fake engines and load for the router's benchmarks, light enough to leave a core to the router.

    python bench/router_fakes.py worker PORT DELAY_SECONDS
    python bench/router_fakes.py load PORT CONNECTIONS REQUESTS json|stream|mixed

A worker answers generation requests with JSON or 50 chunks, DELAY apart; a request with `"hold"` is
never answered. `load` prints one line of JSON: requests a second; time to the first byte of the
answer and to its end, median and 99th percentile, in milliseconds; errors. `mixed` leaves 30 in 100
requests unanswered: half before the head, half within a stream.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from typing import cast

import uvloop

CHUNKS = 50
_EVENTS = [b'data: {"choices":[{"delta":{"content":"tok%d"}}]}\n\n' % n for n in range(CHUNKS)]
_FRAMED = [b"%x\r\n%b\r\n" % (len(event), event) for event in [*_EVENTS, b"data: [DONE]\n\n"]]
_END = b"0\r\n\r\n"
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
_BODY = (
    b'{"id":"x","object":"chat.completion","model_path":"m","data":[{"id":"tiny"}],"choices":[{'
    b'"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}]}'
)
_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
    len(_BODY),
    _BODY,
)


class Worker(asyncio.Protocol):
    """One connection of an engine."""

    def __init__(self, delay: float) -> None:
        self._delay, self._data = delay, b""
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            head = self._data[:end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            stop = end + 4 + length
            if len(self._data) < stop:
                return
            body, self._data = self._data[end + 4 : stop], self._data[stop:]
            self._answer(body)

    def _answer(self, body: bytes) -> None:
        body = body.replace(b" ", b"")
        streams = b'"stream":true' in body
        if b'"hold":true' in body:
            if streams:
                self._transport.write(_STREAM_HEAD + _FRAMED[0])
        elif not streams:
            self._transport.write(_ANSWER)
        elif not self._delay:
            self._transport.write(_STREAM_HEAD)
            for chunk in _FRAMED:
                self._transport.write(chunk)
            self._transport.write(_END)
        else:
            self._task = asyncio.get_running_loop().create_task(self._slowly())

    async def _slowly(self) -> None:
        self._transport.write(_STREAM_HEAD)
        for chunk in _FRAMED:
            self._transport.write(chunk)
            await asyncio.sleep(self._delay)
        self._transport.write(_END)


def request(*, stream: bool = False, hold: bool = False) -> bytes:
    """A chat."""
    value = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hello there, how are you"}],
        "stream": stream,
    }
    if hold:
        value["hold"] = True
    body = json.dumps(value, separators=(",", ":")).encode()
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b" % (len(body), body)
    )


class Client(asyncio.Protocol):
    """One connection that sends request after request; notes when each answer begins and ends."""

    def __init__(self) -> None:
        self._data = b""
        self._answer: asyncio.Future[bool] | None = None
        self._first: asyncio.Future[None] | None = None
        self.began = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        for future in (self._answer, self._first):
            if future is not None and not future.done():
                future.set_exception(ConnectionResetError())

    def data_received(self, data: bytes) -> None:
        if self._answer is None:
            return
        if not self.began:
            self.began = time.perf_counter()
            if self._first is not None and not self._first.done():
                self._first.set_result(None)
        data = self._data = self._data + data if self._data else data
        if b"\r\nt" in data[:400] or b"chunked" in data[:400]:
            done = data.endswith(_END)
        else:
            end = data.find(b"\r\n\r\n")
            head = data[:end].lower()
            at = head.find(b"content-length:")
            done = end >= 0 and len(data) >= end + 4 + int(head[at + 15 :].split(b"\r\n", 1)[0])
        if done and not self._answer.done():
            self._answer.set_result(data.startswith(b"HTTP/1.1 200"))

    async def ask(self, data: bytes) -> bool:
        """Send a request and wait for the whole answer; whether its status was 200."""
        self._answer = asyncio.get_running_loop().create_future()
        self._data, self.began = b"", 0.0
        self.transport.write(data)
        try:
            return await self._answer
        finally:
            self._answer = None

    async def begin(self, data: bytes) -> None:
        """Send a request and wait for the answer's first byte."""
        loop = asyncio.get_running_loop()
        self._answer, self._first = loop.create_future(), loop.create_future()
        self._data, self.began = b"", 0.0
        self.transport.write(data)
        await self._first


async def connect(port: int) -> Client:
    _, client = await asyncio.get_running_loop().create_connection(Client, "127.0.0.1", port)
    return client


def quantile(values: list[float], share: float) -> float:
    """In milliseconds."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] * 1e3 if values else 0.0


async def load(port: int, connections: int, requests: int, kind: str) -> dict[str, float]:
    """Send requests as fast as they are answered."""
    first: list[float] = []
    whole: list[float] = []
    errors = left = 0
    plain, stream = request(stream=kind == "stream"), request(stream=True)
    holds = [request(hold=True), request(stream=True, hold=True)]

    async def one_connection(count: int) -> None:
        nonlocal errors, left
        client = await connect(port)
        for number in range(count):
            chance = random.random() if kind == "mixed" else 1.0
            try:
                if chance < 0.3:
                    left += 1
                    if chance < 0.15:
                        client.transport.write(holds[0])
                        await asyncio.sleep(0.002)
                    else:
                        await client.begin(holds[1])
                    client.transport.abort()
                    client = await connect(port)
                    continue
                start = time.perf_counter()
                data = stream if kind == "mixed" and number % 2 else plain
                if not await client.ask(data):
                    errors += 1
                first.append(client.began - start)
                whole.append(time.perf_counter() - start)
            except ConnectionError:
                errors += 1
                client = await connect(port)
        client.transport.close()

    start = time.perf_counter()
    share = requests // connections
    await asyncio.gather(*(one_connection(share) for _ in range(connections)))
    seconds = time.perf_counter() - start
    return {
        "rps": (len(whole) + left) / seconds,
        "first_p50": quantile(first, 0.5),
        "first_p99": quantile(first, 0.99),
        "p50": quantile(whole, 0.5),
        "p99": quantile(whole, 0.99),
        "errors": errors,
        "left": left,
    }


async def work(port: int, delay: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Worker(delay), "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


def main() -> None:
    """As the module's docstring says."""
    words = sys.argv[1:]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if words[0] == "worker":
            runner.run(work(int(words[1]), float(words[2])))
        else:
            found = runner.run(load(int(words[1]), int(words[2]), int(words[3]), words[4]))
            print(json.dumps(found))


if __name__ == "__main__":
    main()
