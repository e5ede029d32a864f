"""A worker that speaks HTTP/2 without TLS and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.exceptions


class H2Worker:
    """Answers chats, as JSON or as a stream that goes on when `gate` is set.

    Attributes:
        seen: (headers, body) of each request but those of the router's own.
        aborts: bodies of /abort_request.
        reset: streams that the router reset.
        flood: bytes of an answer to /flood.
    """

    def __init__(self) -> None:
        self.port = 0
        self.seen: list[tuple[dict[str, str], bytes]] = []
        self.aborts: list[Any] = []
        self.reset: list[int] = []
        self.gate = asyncio.Event()
        self.flood = 4 * 2**20
        self.connections = 0
        self.sent = 0
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        """As routers know it."""
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        self.connections += 1
        self._writers.add(writer)
        config = h2.config.H2Configuration(client_side=False, header_encoding="utf-8")
        connection = h2.connection.H2Connection(config)
        connection.initiate_connection()
        writer.write(connection.data_to_send())
        headers: dict[int, dict[str, str]] = {}
        bodies: dict[int, bytes] = {}
        window = asyncio.Event()
        tasks = set()
        with contextlib.suppress(ConnectionError, h2.exceptions.ProtocolError):
            while data := await reader.read(65536):
                for event in connection.receive_data(data):
                    match event:
                        case h2.events.RequestReceived():
                            headers[event.stream_id] = dict(event.headers)
                            bodies[event.stream_id] = b""
                        case h2.events.DataReceived():
                            bodies[event.stream_id] += event.data
                            length = event.flow_controlled_length
                            connection.acknowledge_received_data(length, event.stream_id)
                        case h2.events.StreamEnded():
                            number = event.stream_id
                            work = self.answer(
                                connection, writer, number, headers[number], bodies[number], window
                            )
                            task = asyncio.create_task(work)
                            tasks.add(task)
                        case h2.events.StreamReset():
                            self.reset.append(event.stream_id)
                        case h2.events.WindowUpdated():
                            window.set()
                writer.write(connection.data_to_send())
        for task in tasks:
            task.cancel()
        self._writers.discard(writer)
        writer.close()

    async def answer(
        self,
        connection: h2.connection.H2Connection,
        writer: asyncio.StreamWriter,
        number: int,
        headers: dict[str, str],
        body: bytes,
        window: asyncio.Event,
    ) -> None:
        """One request."""

        def send(data: bytes, *, end: bool) -> None:
            connection.send_data(number, data, end_stream=end)
            writer.write(connection.data_to_send())

        path = headers[":path"]
        kind = "application/json"
        stream = path.startswith("/v1/chat") and json.loads(body).get("stream") is True
        if stream:
            kind = "text/event-stream"
        if path == "/abort_request":
            self.aborts.append(json.loads(body))
        elif path not in ("/v1/models", "/server_info", "/health"):
            self.seen.append((headers, body))
        connection.send_headers(number, [(":status", "200"), ("content-type", kind)])
        writer.write(connection.data_to_send())
        if stream:
            send(b"data: a\n\n", end=False)
            await self.gate.wait()
            send(b"data: [DONE]\n\n", end=True)
        elif path == "/flood":
            left = self.flood
            while left:
                room = connection.local_flow_control_window(number)
                size = min(room, left, connection.max_outbound_frame_size)
                if not size:
                    window.clear()
                    await window.wait()
                    continue
                left -= size
                self.sent += size
                send(b"x" * size, end=not left)
                await writer.drain()
        else:
            send(b'{"data":[{"id":"tiny"}],"body":%d}' % len(body), end=True)


@contextlib.asynccontextmanager
async def h2_worker() -> AsyncIterator[H2Worker]:
    """A worker that serves while the block runs."""
    worker = H2Worker()
    server = await asyncio.start_server(worker.serve, "127.0.0.1", 0)
    worker.port = server.sockets[0].getsockname()[1]
    try:
        yield worker
    finally:
        server.close()
        for writer in tuple(worker._writers):
            writer.transport.abort()
