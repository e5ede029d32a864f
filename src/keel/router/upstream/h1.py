"""HTTP/1.1 to a worker: connections that are kept and used again, the newest first."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any, cast

import httptools

from keel.router.headers import Headers
from keel.router.upstream.base import Call, Failure, FailureKind, Head, Piece, Sink
from keel.sockets import no_delay

# Workers close idle connections (uvicorn after 5 s); a request sent into a closing connection may
# or may not be lost, so a connection is not used again near that age.
MAX_IDLE_SECONDS = 4.0
_MAX_IDLE_CONNECTIONS = 512
# Up to here head and body go out as one piece.
_JOIN_LIMIT = 32 * 1024
_MAX_HEAD = 256 * 1024


class H1Upstream:
    """The pool of connections to one worker.

    Args:
        host, port, base: of the worker's URL; `base` is put before each path.
    """

    def __init__(self, host: str, port: int, base: str, connect_timeout: float) -> None:
        self.host, self.port, self.connect_timeout = host, port, connect_timeout
        name = f"[{host}]" if ":" in host else host
        self._base = base.encode()
        self._host_line = f" HTTP/1.1\r\nhost: {name}:{port}\r\n".encode()
        self._idle: list[H1Connection] = []
        self.open: set[H1Connection] = set()

    def send(self, call: Call, sink: Sink) -> H1Connection:
        """As `Upstream.send`."""
        pieces = self._pieces(call)
        idle, oldest = self._idle, time.monotonic() - MAX_IDLE_SECONDS
        while idle:
            connection = idle.pop()
            if connection.idle_since > oldest and not connection.is_closing:
                connection.begin(call.method, pieces, sink)
                return connection
            connection.close()
        connection = H1Connection(self)
        self.open.add(connection)
        connection.connect(call.method, pieces, sink)
        return connection

    def keep(self, connection: H1Connection) -> None:
        """A connection whose answer is complete."""
        if len(self._idle) >= _MAX_IDLE_CONNECTIONS:
            connection.close()
        else:
            connection.idle_since = time.monotonic()
            self._idle.append(connection)

    def lost(self, connection: H1Connection) -> None:
        """A connection that ended."""
        self.open.discard(connection)
        with contextlib.suppress(ValueError):
            self._idle.remove(connection)

    def close_idle(self) -> None:
        """As `Upstream.close_idle`."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def sweep(self) -> None:
        """Close the connections that are too old to be used again."""
        oldest = time.monotonic() - MAX_IDLE_SECONDS
        stale = [c for c in self._idle if c.idle_since <= oldest]
        self._idle = [c for c in self._idle if c.idle_since > oldest]
        for connection in stale:
            connection.close()

    def _pieces(self, call: Call) -> list[Piece]:
        length = b"content-length: %d\r\n\r\n" % call.length if call.length >= 0 else b"\r\n"
        head = b"".join(
            (
                call.method,
                b" ",
                self._base,
                call.target,
                self._host_line,
                call.headers,
                length,
            )
        )
        if call.length <= _JOIN_LIMIT:
            return [b"".join((head, *call.body))]
        return [head, *call.body]


class H1Connection(asyncio.Protocol):
    """One connection, and the request that it carries if it carries one.

    It is connecting, busy (`_sink` is set), idle in its pool, or closed.
    """

    def __init__(self, pool: H1Upstream) -> None:
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[Any] | None = None
        self._sink: Sink | None = None
        self._parser: Any = httptools.HttpResponseParser(self)
        self._pieces: list[Piece] = []
        self._bodiless = False
        self.idle_since = 0.0
        self._clear()

    def _clear(self) -> None:
        self._headers: Headers = []
        self._head_bytes = 0
        self._head: Head | None = None
        self._delivered = False
        self._parts: list[bytes] = []
        self._complete = self._surplus = False
        self._keep = True

    @property
    def is_closing(self) -> bool:
        """Whether it cannot carry a request."""
        return self._transport is None or self._transport.is_closing()

    # What the pool asks.

    def connect(self, method: bytes, pieces: list[Piece], sink: Sink) -> None:
        """Connect, then send."""
        self._sink, self._pieces, self._bodiless = sink, pieces, method == b"HEAD"
        self._task = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._pool.connect_timeout):
                await loop.create_connection(lambda: self, self._pool.host, self._pool.port)
        except TimeoutError:
            self._task = None
            self._fail(FailureKind.CONNECT, f"no connection in {self._pool.connect_timeout:g} s")
        except OSError as error:
            self._task = None
            self._fail(FailureKind.CONNECT, error.strerror or str(error))
        finally:
            self._task = None

    def begin(self, method: bytes, pieces: list[Piece], sink: Sink) -> None:
        """Send on an idle connection."""
        self._sink, self._bodiless = sink, method == b"HEAD"
        self._clear()
        self._write(pieces)

    def _write(self, pieces: list[Piece]) -> None:
        assert self._transport is not None
        assert self._sink is not None
        if len(pieces) == 1:
            self._transport.write(pieces[0])
        else:
            self._transport.writelines(pieces)
        self._sink.sent()

    # What whoever asked may do.

    def cancel(self) -> None:
        """As `Exchange.cancel`."""
        self._sink = None
        self.close()

    def pause(self) -> None:
        """As `Exchange.pause`."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        """As `Exchange.resume`."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        """End the connection at once."""
        self._pool.open.discard(self)
        if self._task is not None:
            self._task.cancel()
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's derive from nothing
        self._transport = transport
        no_delay(transport)
        if self._sink is None:  # cancelled while it connected
            transport.abort()
            return
        pieces, self._pieces = self._pieces, []
        self._write(pieces)

    def data_received(self, data: bytes) -> None:
        if self._sink is None:  # nobody asked
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, ValueError) as error:
            if not self._complete:
                self._fail(FailureKind.PROTOCOL, f"not an HTTP/1.1 answer: {error}")
                return
            self._keep = False  # the answer is whole, what follows it is not ours
        self._deliver()

    def _deliver(self) -> None:
        """Hand on what one read brought, in one piece."""
        sink = self._sink
        if sink is None or self._head is None:
            return
        head = None if self._delivered else self._head
        self._delivered = True
        parts = self._parts
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        if parts:
            self._parts = []
        if self._complete:
            self._release()
            sink.response(head, data, True)
        elif head is not None or data:
            sink.response(head, data, False)

    def _release(self) -> None:
        self._sink = None
        transport = self._transport
        assert transport is not None
        unsent = transport.get_write_buffer_size() > 0  # it answered before it had read everything
        if self._keep and not self._surplus and not unsent and not transport.is_closing():
            transport.resume_reading()
            self._pool.keep(self)
        else:
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._pool.lost(self)
        if self._sink is None:
            return
        if self._head is None:
            why = str(error) if error else "the worker closed the connection without an answer"
            self._fail(FailureKind.RESET, why)
        elif self._head.framed:
            why = str(error) if error else "the worker closed the connection within its answer"
            self._fail(FailureKind.BROKEN, why)
        elif error is not None:
            self._fail(FailureKind.BROKEN, str(error))
        else:
            sink, self._sink = self._sink, None
            sink.response(None if self._delivered else self._head, b"", True)

    def _fail(self, kind: FailureKind, reason: str) -> None:
        sink, self._sink = self._sink, None
        self.close()
        if sink is not None:
            sink.failed(Failure(kind, reason))

    # httptools

    def on_message_begin(self) -> None:
        if self._complete:
            self._surplus = True

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > _MAX_HEAD:
            raise ValueError(f"its head has more than {_MAX_HEAD} bytes")
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self._complete:
            return
        status = self._parser.get_status_code()
        if status < 200:
            return
        self._head = Head(status, self._headers)
        self._keep = self._parser.should_keep_alive()
        if self._bodiless:  # the parser would wait for the body that a HEAD's head speaks of
            self._complete, self._keep = True, False

    def on_body(self, data: bytes) -> None:
        if not self._complete:
            self._parts.append(data)

    def on_message_complete(self) -> None:
        if self._head is None:  # 1xx: the answer is still to come
            self._headers = []
            return
        self._complete = True
