"""What the supervisor and the router processes say to each other, and how it crosses a socket."""

from __future__ import annotations

import asyncio

import msgspec

from keel.router.fleet import Added, Drained, Removed
from keel.router.metrics import Snapshot
from keel.router.worker import WorkerSpec

_LENGTH_BYTES = 4


class Please(msgspec.Struct, frozen=True, tag="please"):
    """A process asks the supervisor: `add` a spec, `drain` or `remove` a URL, or `snapshot`."""

    ticket: int
    verb: str
    spec: WorkerSpec | None = None
    url: str = ""


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The supervisor's answer; `error` is a sentence where it could not be done."""

    ticket: int
    found: bool = True
    error: str = ""
    snapshot: Snapshot | None = None


class Tell(msgspec.Struct, frozen=True, tag="tell"):
    """The supervisor wants a process's metrics."""

    ticket: int


class Told(msgspec.Struct, frozen=True, tag="told"):
    """The metrics."""

    ticket: int
    snapshot: Snapshot


class Serving(msgspec.Struct, frozen=True, tag="serving"):
    """A process listens."""


Message = Added | Drained | Removed | Please | Done | Tell | Told | Serving
_decoder = msgspec.msgpack.Decoder(Message)
_encoder = msgspec.msgpack.Encoder()


def packed(message: Message) -> bytes:
    """A message as it crosses."""
    data = _encoder.encode(message)
    return len(data).to_bytes(_LENGTH_BYTES, "big") + data


async def receive(reader: asyncio.StreamReader) -> Message | None:
    """The next message; None when the other side ended."""
    try:
        size = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
        return _decoder.decode(await reader.readexactly(size))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
