"""A client's connection: reads requests, has them handled one after another, writes answers."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, cast

import httptools

from keel.router.headers import Headers
from keel.router.refusal import Refusal
from keel.sockets import no_delay

_MAX_HEAD = 64 * 1024
# Requests sent ahead of their answers. The socket is always read, so that a client's leaving is
# seen at once; what comes ahead is therefore held, and a client that goes too far is cut off.
_MAX_AHEAD = 64
_MAX_AHEAD_BYTES = 4 * 2**20
_HIGH_WATER = 128 * 1024
# After a refusal within a request the rest is read away for so long, or the refusal would be lost.
_LINGER_SECONDS = 2.0


class ClientRequest:
    """A request as it was read.

    Attributes:
        headers: names in lower case; `known` finds their values, of a repeated one the last.
        old: HTTP/1.0.
    """

    __slots__ = ("body", "headers", "keep_alive", "known", "method", "old", "path", "target")

    def __init__(
        self, method: bytes, target: bytes, headers: Headers, keep_alive: bool, old: bool
    ) -> None:
        self.method, self.headers = method, headers
        self.known = dict(headers)
        self.keep_alive, self.old = keep_alive, old
        if not target.startswith(b"/"):
            target = _origin_form(target)
        self.target = target
        self.path = target.partition(b"?")[0]
        self.body = b""


def _origin_form(target: bytes) -> bytes:
    if target == b"*":
        return b"/"
    _, _, rest = target.partition(b"://")
    return b"/" + rest.partition(b"/")[2]


def _without_offer(method: bytes, url: bytes, version: str, headers: Headers) -> bytes:
    """A head as bytes, without what offers another protocol."""
    offers = (b"upgrade", b"http2-settings")
    lines = [b"%b %b HTTP/%b" % (method, url, version.encode())]
    for name, value in headers:
        if name == b"connection":
            words = [word.strip() for word in value.split(b",")]
            value = b", ".join(word for word in words if word.lower() not in offers)
        if name not in offers and (value or name != b"connection"):
            lines.append(b"%b: %b" % (name, value))
    return b"\r\n".join([*lines, b"", b""])


class Handling(Protocol):
    """Whatever answers a request."""

    def client_gone(self) -> None:
        """Nobody waits any more."""

    def client_paused(self) -> None:
        """The client reads slower than it is written to."""

    def client_resumed(self) -> None:
        """It caught up."""


Handler = Callable[["ClientConnection", ClientRequest], Handling | None]


class ClientConnection(asyncio.Protocol):
    """One connection.

    Args:
        handle: begins to answer a request; returns who does, or None if it has been answered.
        connections: all of the router; this one is in it as long as it is open.
        max_body: bytes.
    """

    def __init__(self, handle: Handler, connections: set[ClientConnection], max_body: int) -> None:
        self._handle, self._connections, self._max_body = handle, connections, max_body
        self._transport: asyncio.Transport | None = None
        self._parser: Any = httptools.HttpRequestParser(self)
        self._handling: Handling | None = None
        self._busy = False  # a request is being answered
        self._ahead: deque[ClientRequest] = deque()
        self._ahead_bytes = 0
        self._paused = False
        self._deaf = False  # what comes is thrown away
        self._request: ClientRequest | None = None
        self.quiet_since = self._reading_since = time.monotonic()
        self.closing_after = False
        self._clear()

    def _clear(self) -> None:
        self._url = self._declined = b""
        self._headers: Headers = []
        self._head_bytes = 0
        self._parts: list[bytes] = []
        self._size = 0

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's derive from nothing
        self._transport = transport
        transport.set_write_buffer_limits(high=_HIGH_WATER)
        no_delay(transport)
        self._connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._connections.discard(self)
        self._transport = None
        self._deaf = True
        self._ahead.clear()
        handling, self._handling = self._handling, None
        if handling is not None:
            handling.client_gone()

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        if self._busy:
            self._ahead_bytes += len(data)
            if self._ahead_bytes > _MAX_AHEAD_BYTES:
                self.abort()
                return
        elif self._request is not None:
            self.quiet_since = time.monotonic()
        try:
            self._feed(data)
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__ or error.__cause__
            if not isinstance(cause, Refusal):
                raise
            self._refuse(cause)
        except httptools.HttpParserError as error:
            self._refuse(Refusal(400, "invalid_request", f"this is not HTTP/1.1: {error}"))

    def _feed(self, data: bytes) -> None:
        while True:
            try:
                self._parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as offer:
                # The parser has left HTTP at the head's end. An offer is declined by not being
                # mentioned (RFC 9110, 7.8): read the head once more, without it.
                data = self._declined + data[offer.args[0] :]
                self._declined = b""

    def pause_writing(self) -> None:
        self._paused = True
        if self._handling is not None:
            self._handling.client_paused()

    def resume_writing(self) -> None:
        self._paused = False
        if self._handling is not None:
            self._handling.client_resumed()

    # httptools

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(len(name) + len(value))
        if self._request is None:  # what comes after a chunked body is no header (RFC 9110, 6.5.1)
            self._headers.append((name.lower(), value))

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > _MAX_HEAD:
            raise Refusal(431, "head_too_large", f"the head has more than {_MAX_HEAD} bytes")

    def on_headers_complete(self) -> None:
        parser = self._parser
        method = parser.get_method()
        if method == b"CONNECT":
            raise Refusal(405, "invalid_request", "the router is no tunnel")
        if parser.should_upgrade():
            head = _without_offer(method, self._url, parser.get_http_version(), self._headers)
            self._clear()
            self._declined = head
            return
        self._reading_since = time.monotonic()
        self._request = ClientRequest(
            method,
            self._url,
            self._headers,
            parser.should_keep_alive(),
            parser.get_http_version() != "1.1",
        )
        known = self._request.known
        if int(known.get(b"content-length", 0)) > self._max_body:
            raise self._too_large()
        if known.get(b"expect", b"").lower() == b"100-continue" and not self._busy:
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > self._max_body:
            raise self._too_large()
        self._parts.append(data)

    def _too_large(self) -> Refusal:
        limit = self._max_body
        return Refusal(413, "body_too_large", f"the body has more than {limit} bytes")

    def on_message_complete(self) -> None:
        request, self._request = self._request, None
        if request is None:  # the head of an offer that is declined
            return
        parts = self._parts
        request.body = parts[0] if len(parts) == 1 else b"".join(parts)
        self._clear()
        if self._busy:
            self._ahead.append(request)
            if len(self._ahead) > _MAX_AHEAD:
                self.abort()
        elif not self._deaf:
            self._begin(request)

    # What handlers call.

    def _begin(self, request: ClientRequest) -> None:
        self._busy = True
        handling = self._handle(self, request)
        if self._busy:
            self._handling = handling
            if self._paused and handling is not None:
                handling.client_paused()

    @property
    def peer(self) -> str:
        """The client's address."""
        name = self._transport.get_extra_info("peername") if self._transport else None
        return str(name[0]) if name else ""

    @property
    def buffered(self) -> int:
        """Bytes written that the kernel has not taken."""
        return self._transport.get_write_buffer_size() if self._transport else 0

    def write(self, data: bytes) -> None:
        """Write to the client; nothing happens if it is gone."""
        if self._transport is not None:
            self._transport.write(data)

    def writelines(self, pieces: list[bytes]) -> None:
        """Write without joining."""
        if self._transport is not None:
            self._transport.writelines(pieces)

    def finished(self, keep_alive: bool) -> None:
        """The answer is complete and written: close, or go on to the next request."""
        self._handling = None
        self._busy = False
        self._ahead_bytes = 0
        self.quiet_since = time.monotonic()
        if not keep_alive or self.closing_after:
            self.close()
        elif self._ahead:
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        if self._ahead and not self._busy and not self._deaf:
            self._begin(self._ahead.popleft())

    def close(self) -> None:
        """Close once what was written is sent."""
        self._deaf = True
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once, with what was written and not sent."""
        self._deaf = True
        if self._transport is not None:
            self._transport.abort()

    def cut(self, *, drained: bool) -> None:
        """End within an answer, in such a way that the client does not take it for a whole one.

        Args:
            drained: send what was written; for answers whose coding shows that the end is missing.
        """
        if drained:
            self.close()
        else:
            self.abort()

    def check(self, quiet_since: float, reading_since: float) -> None:
        """Close if nothing is being answered, and nothing was since the first of these times; or if
        a body has been coming since before the second one. Called by the janitor."""
        if self._busy or self._deaf:
            return
        if self._request is not None and self._reading_since < reading_since:
            self._refuse(Refusal(408, "request_incomplete", "the body took too long to come"))
        elif self.quiet_since < quiet_since:
            self.close()

    def close_when_idle(self) -> None:
        """Close now, or after the request in hand."""
        self.closing_after = True
        if not self._busy and self._request is None:
            self.close()

    def _refuse(self, refusal: Refusal) -> None:
        """Answer what could not be read, and read no further."""
        if self._busy:  # the answer to the request before would be mixed up with this one
            self.abort()
            return
        self._deaf = True
        body = refusal.body()
        self.write(
            b"HTTP/1.1 %d Refused\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
            b"x-router-error-code: %b\r\nconnection: close\r\n\r\n%b"
            % (refusal.status, len(body), refusal.code.encode(), body)
        )
        transport = self._transport
        if transport is not None and not transport.is_closing():
            transport.write_eof()
            asyncio.get_running_loop().call_later(_LINGER_SECONDS, transport.close)
