"""HTTP/2 without TLS to a worker: many requests on few connections."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any, cast

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings

from keel.router.upstream.base import Call, Failure, FailureKind, Head, Piece, Sink
from keel.sockets import no_delay

_STREAM_WINDOW = 1024 * 1024
_CONNECTION_WINDOW = 64 * 1024 * 1024
# Window is given back in portions of this size, not for each token.
_GIVE_BACK = 64 * 1024
_MAX_IDLE_SECONDS = 60.0
_MAX_STREAMS = 256


class H2Upstream:
    """The connections to one worker.

    Args:
        host, port, base: of the worker's URL; `base` is put before each path.
    """

    def __init__(self, host: str, port: int, base: str, connect_timeout: float) -> None:
        self.host, self.port, self.connect_timeout = host, port, connect_timeout
        name = f"[{host}]" if ":" in host else host
        self.authority = f"{name}:{port}".encode()
        self.base = base.encode()
        self.connections: set[H2Connection] = set()

    def send(self, call: Call, sink: Sink) -> H2Stream:
        """As `Upstream.send`."""
        connection = next((c for c in self.connections if c.has_room), None)
        if connection is None:
            connection = H2Connection(self)
            self.connections.add(connection)
            connection.connect()
        stream = H2Stream(connection, call, sink)
        connection.begin(stream)
        return stream

    def close_idle(self) -> None:
        """As `Upstream.close_idle`."""
        for connection in tuple(self.connections):
            connection.close_if_idle(0.0)

    def sweep(self) -> None:
        """As `Upstream.sweep`."""
        for connection in tuple(self.connections):
            connection.close_if_idle(_MAX_IDLE_SECONDS)


class H2Stream:
    """One request; an `Exchange` of the transport."""

    def __init__(self, connection: H2Connection, call: Call, sink: Sink) -> None:
        self._connection = connection
        self.call = call
        self.sink: Sink | None = sink
        self.id = 0
        self.unsent: list[Piece] = [piece for piece in call.body if len(piece)]
        self.head: Head | None = None
        self.delivered = False
        self.parts: list[bytes] = []
        self.ended = False
        self.paused = False
        self.owed = 0  # bytes taken, whose window has not been given back

    def cancel(self) -> None:
        """As `Exchange.cancel`."""
        self.sink = None
        self._connection.reset(self)

    def pause(self) -> None:
        """As `Exchange.pause`: the worker may fill this stream's window, and no more."""
        self.paused = True

    def resume(self) -> None:
        """As `Exchange.resume`."""
        if self.paused:
            self.paused = False
            self._connection.give_back(self)


class H2Connection(asyncio.Protocol):
    """One connection and its streams."""

    def __init__(self, pool: H2Upstream) -> None:
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[Any] | None = None
        self._waiting: list[H2Stream] = []  # for the connection
        self._streams: dict[int, H2Stream] = {}
        self._owed = 0
        self._blocked = True  # bodies that wait for a window have nothing new to hope for
        self._going = False  # no new streams
        self._idle_since = time.monotonic()
        config = h2.config.H2Configuration(client_side=True, header_encoding=None)
        self._h2 = h2.connection.H2Connection(config)
        self._h2.local_settings = h2.settings.Settings(
            client=True,
            initial_values={
                h2.settings.SettingCodes.ENABLE_PUSH: 0,
                h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: _STREAM_WINDOW,
            },
        )

    @property
    def has_room(self) -> bool:
        """Whether it takes another stream."""
        if self._going:
            return False
        limit = min(_MAX_STREAMS, self._h2.remote_settings.max_concurrent_streams)
        return len(self._streams) + len(self._waiting) < limit

    def connect(self) -> None:
        """Begin to connect."""
        self._task = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._pool.connect_timeout):
                await loop.create_connection(lambda: self, self._pool.host, self._pool.port)
        except TimeoutError:
            self._unreachable(f"no connection in {self._pool.connect_timeout:g} s")
        except OSError as error:
            self._unreachable(error.strerror or str(error))

    def _unreachable(self, reason: str) -> None:
        self._pool.connections.discard(self)
        self._going = True
        waiting, self._waiting = self._waiting, []
        for stream in waiting:
            _fail(stream, FailureKind.CONNECT, reason)

    def begin(self, stream: H2Stream) -> None:
        """Send a request, once there is a connection."""
        if self._transport is None:
            self._waiting.append(stream)
        else:
            self._start(stream)
            self._flush()

    def _start(self, stream: H2Stream) -> None:
        if stream.sink is None:
            return
        call = stream.call
        headers = [
            (b":method", call.method),
            (b":scheme", b"http"),
            (b":authority", self._pool.authority),
            (b":path", self._pool.base + call.target),
        ]
        for line in call.headers.split(b"\r\n"):
            name, colon, value = line.partition(b": ")
            if colon:
                headers.append((name, value))
        if call.length >= 0:
            headers.append((b"content-length", b"%d" % call.length))
        stream.id = self._h2.get_next_available_stream_id()
        self._streams[stream.id] = stream
        self._h2.send_headers(stream.id, headers, end_stream=not stream.unsent)
        stream.sink.sent()
        self._send_body(stream)

    def _send_body(self, stream: H2Stream) -> None:
        """As much of the body as the worker's windows allow."""
        unsent = stream.unsent
        while unsent:
            room = min(
                self._h2.local_flow_control_window(stream.id), self._h2.max_outbound_frame_size
            )
            if room <= 0:
                return
            piece = memoryview(unsent[0])
            part, rest = piece[:room], piece[room:]
            if len(rest):
                unsent[0] = rest
            else:
                unsent.pop(0)
            self._h2.send_data(stream.id, bytes(part), end_stream=not unsent)

    def reset(self, stream: H2Stream) -> None:
        """Tell the worker that nobody waits for the stream."""
        if self._streams.pop(stream.id, None) is None:
            return
        try:
            self._h2.reset_stream(stream.id, h2.errors.ErrorCodes.CANCEL)
        except h2.exceptions.ProtocolError:
            return  # it ended at the same moment
        self._flush()
        self._rest()

    def give_back(self, stream: H2Stream) -> None:
        """Let the worker send as much as was taken."""
        if stream.id in self._streams and stream.owed:
            self._h2.increment_flow_control_window(stream.owed, stream.id)
            stream.owed = 0
            self._flush()

    def close_if_idle(self, seconds: float) -> None:
        """Close if there has been no stream for so long."""
        busy = self._streams or self._waiting
        if not busy and time.monotonic() - self._idle_since >= seconds:
            self._going = True
            self._pool.connections.discard(self)
            if self._transport is not None:
                self._transport.close()

    def _flush(self) -> None:
        data = self._h2.data_to_send()
        if data and self._transport is not None:
            self._transport.write(data)

    def _rest(self) -> None:
        if not self._streams:
            self._idle_since = time.monotonic()
            if self._going and self._transport is not None:
                self._transport.close()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        no_delay(transport)
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(_CONNECTION_WINDOW)
        waiting, self._waiting = self._waiting, []
        for stream in waiting:
            self._start(stream)
        self._flush()

    def data_received(self, data: bytes) -> None:
        try:
            events = self._h2.receive_data(data)
        except h2.exceptions.ProtocolError as error:
            self._flush()
            self._end(FailureKind.PROTOCOL, f"not HTTP/2: {error}")
            return
        touched: dict[int, H2Stream] = {}
        for event in events:
            self._note(event, touched)
        if self._owed >= _GIVE_BACK:
            # Of the connection's window at once: a slow client must not hold up the others.
            self._h2.increment_flow_control_window(self._owed)
            self._owed = 0
        for stream in touched.values():
            # Not sooner: h2 is ahead of us, and an ended stream has no window.
            if stream.id in self._streams and not stream.paused and stream.owed >= _GIVE_BACK:
                self._h2.increment_flow_control_window(stream.owed, stream.id)
                stream.owed = 0
        if not self._blocked:
            self._blocked = True
            for stream in self._streams.values():
                self._send_body(stream)
        self._flush()
        for stream in touched.values():
            _deliver(stream)
        self._rest()

    def _note(self, event: h2.events.Event, touched: dict[int, H2Stream]) -> None:
        match event:
            case h2.events.ResponseReceived():
                if (stream := self._streams.get(event.stream_id)) is not None:
                    fields = [(bytes(n), bytes(v)) for n, v in event.headers]
                    status = int(next(v for n, v in fields if n == b":status"))
                    stream.head = Head(status, [f for f in fields if not f[0].startswith(b":")])
                    stream.head.framed = True
                    touched[stream.id] = stream
            case h2.events.DataReceived():
                self._owed += event.flow_controlled_length
                if (stream := self._streams.get(event.stream_id)) is not None:
                    stream.parts.append(event.data)
                    stream.owed += event.flow_controlled_length
                    touched[stream.id] = stream
            case h2.events.StreamEnded():
                if (stream := self._streams.pop(event.stream_id, None)) is not None:
                    stream.ended = True
                    touched[stream.id] = stream
                    if stream.unsent:  # it answered before it had read everything
                        with contextlib.suppress(h2.exceptions.ProtocolError):  # or reset it too
                            self._h2.reset_stream(stream.id, h2.errors.ErrorCodes.NO_ERROR)
            case h2.events.StreamReset():
                if (stream := self._streams.pop(event.stream_id, None)) is not None:
                    kind = FailureKind.BROKEN if stream.head else FailureKind.RESET
                    _fail(stream, kind, f"the worker reset the stream ({event.error_code})")
            case h2.events.WindowUpdated() | h2.events.RemoteSettingsChanged():
                self._blocked = False
            case h2.events.ConnectionTerminated():
                self._going = True
                for number in [n for n in self._streams if n > (event.last_stream_id or 0)]:
                    _fail(self._streams.pop(number), FailureKind.RESET, "the worker is going away")

    def connection_lost(self, error: Exception | None) -> None:
        self._end(FailureKind.RESET, str(error) if error else "the worker closed the connection")

    def _end(self, kind: FailureKind, reason: str) -> None:
        self._going = True
        self._pool.connections.discard(self)
        streams, self._streams = self._streams, {}
        if self._transport is not None:
            self._transport.abort()
        for stream in streams.values():
            _fail(stream, FailureKind.BROKEN if stream.head else kind, reason)


def _deliver(stream: H2Stream) -> None:
    """Hand on what one read brought, in one piece."""
    sink = stream.sink
    if sink is None or stream.head is None:
        return
    head = None if stream.delivered else stream.head
    stream.delivered = True
    parts, stream.parts = stream.parts, []
    if stream.ended:
        stream.sink = None
    sink.response(head, b"".join(parts), stream.ended)


def _fail(stream: H2Stream, kind: FailureKind, reason: str) -> None:
    sink, stream.sink = stream.sink, None
    if sink is not None:
        sink.failed(Failure(kind, reason))
