"""What a transport to a worker is, and what it tells about a request's answer."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

import msgspec

from keel.router.headers import HOP_BY_HOP, Headers

Piece = bytes | bytearray | memoryview


class FailureKind(StrEnum):
    """How far an answer came."""

    CONNECT = "connect"  # there is no connection: the worker has seen nothing
    RESET = "reset"  # the connection ended before the head of an answer
    BROKEN = "broken"  # it ended within the answer
    PROTOCOL = "protocol"  # what came is not HTTP


class Failure(msgspec.Struct, frozen=True):
    """Why there is no answer, or no whole one."""

    kind: FailureKind
    reason: str


class Call(msgspec.Struct, frozen=True, gc=False):
    """What is asked of a worker.

    Args:
        target: path and query.
        headers: lines of HTTP/1.1, each ended by CR LF; without host and content-length.
        body: in pieces.
        length: of the body in bytes; -1: there is none, as in GET.
    """

    method: bytes
    target: bytes
    headers: bytes
    body: Sequence[Piece] = ()
    length: int = -1


class Head:
    """The head of an answer.

    Attributes:
        lines: the headers that pass to the client, as lines of HTTP/1.1, without content-length.
        length: content-length, or None.
        framed: whether the answer says where it ends; else the connection's end is its end.
        json, event_stream: what the content-type says.
    """

    __slots__ = ("event_stream", "framed", "has_request_id", "json", "length", "lines", "status")

    def __init__(self, status: int, headers: Headers) -> None:
        self.status = status
        self.length: int | None = None
        self.framed = self.json = self.event_stream = self.has_request_id = False
        lines = []
        for name, value in headers:
            lower = name.lower()
            if lower == b"content-length":
                self.length = int(value)
                self.framed = True
                continue
            if lower in HOP_BY_HOP:
                if lower == b"transfer-encoding":
                    self.framed = True
                continue
            if lower == b"content-type":
                kind = value.lower()
                self.json = kind.startswith(b"application/json")
                self.event_stream = kind.startswith(b"text/event-stream")
            elif lower == b"x-request-id":
                self.has_request_id = True
            lines.append(name + b": " + value + b"\r\n")
        self.lines = b"".join(lines)


class Sink(Protocol):
    """Who an answer is for. After `end` or `failed` nothing more comes."""

    def sent(self) -> None:
        """The request is on its way: from now on the worker may have it."""

    def response(self, head: Head | None, data: bytes, end: bool) -> None:
        """More of the answer: its head once and first, body bytes, whether that was all."""

    def failed(self, failure: Failure) -> None:
        """There will be no more."""


class Exchange(Protocol):
    """A request in the hands of a transport."""

    def cancel(self) -> None:
        """Nobody wants the answer; the sink hears nothing more. May be called at any time."""

    def pause(self) -> None:
        """The sink has enough for now: take nothing from the worker."""

    def resume(self) -> None:
        """Go on."""


class Upstream(Protocol):
    """The way to one worker."""

    def send(self, call: Call, sink: Sink) -> Exchange:
        """Ask. The sink hears of it later, never from within this call, except `sent`."""

    def close_idle(self) -> None:
        """Close the connections that carry nothing."""

    def sweep(self) -> None:
        """Close the connections that are too old to be used again."""
