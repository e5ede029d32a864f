"""A streamed request to a server that speaks OpenAI's API, with a time for each piece.

A client of few lines, so that it takes little of the processor that the server needs: where both
share a machine, a heavy client measures itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httptools
import msgspec

from keel.bench.record import Record

_READ = 64 * 1024
_CONNECT_SECONDS = 30.0


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Any] | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None

    def has_text(self) -> bool:
        delta = self.delta
        return bool(
            self.text or (delta and (delta.content or delta.reasoning_content or delta.tool_calls))
        )


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_events = msgspec.json.Decoder(_Event)


@dataclass(frozen=True)
class Endpoint:
    """A server, and how to be let in."""

    host: str
    port: int
    base: str
    secure: ssl.SSLContext | None
    api_key: str | None

    @classmethod
    def of(cls, url: str, api_key: str | None = None) -> Endpoint:
        """From a base URL, with or without a trailing `/v1`."""
        parts = urlsplit(url)
        secure = ssl.create_default_context() if parts.scheme == "https" else None
        base = parts.path.rstrip("/").removesuffix("/v1")
        port = parts.port or (443 if secure else 80)
        return cls(parts.hostname or "", port, base, secure, api_key)

    def head(self, method: str, path: str, length: int) -> bytes:
        """The head of a request on a connection of its own."""
        key = f"authorization: Bearer {self.api_key}\r\n" if self.api_key else ""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return (
            f"{method} {self.base}{path} HTTP/1.1\r\nhost: {host}:{self.port}\r\n{key}"
            f"content-type: application/json\r\ncontent-length: {length}\r\n"
            "connection: close\r\n\r\n"
        ).encode()


class _Answer:
    """Collects an answer; httptools calls it."""

    def __init__(self) -> None:
        self.parser: Any = httptools.HttpResponseParser(self)
        self.body = bytearray()
        self.is_complete = False

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.is_complete = True

    @property
    def status(self) -> int:
        return int(self.parser.get_status_code())


@contextlib.asynccontextmanager
async def _connection(endpoint: Endpoint) -> Any:
    async with asyncio.timeout(_CONNECT_SECONDS):
        reader, writer = await asyncio.open_connection(
            endpoint.host, endpoint.port, ssl=endpoint.secure, limit=1 << 20
        )
    try:
        yield reader, writer
    finally:
        writer.close()


async def get(endpoint: Endpoint, path: str) -> tuple[int, bytes]:
    """Status and body of a plain GET.

    Raises:
        OSError: there is no answer.
    """
    answer = _Answer()
    async with _connection(endpoint) as (reader, writer):
        writer.write(endpoint.head("GET", path, 0))
        while not answer.is_complete and (data := await reader.read(_READ)):
            answer.parser.feed_data(data)
    if not answer.is_complete and not answer.status:
        raise OSError(f"{endpoint.host}:{endpoint.port} closed without an answer")
    return answer.status, bytes(answer.body)


async def ask(endpoint: Endpoint, path: str, body: dict[str, Any]) -> Record:
    """Send one request with `stream: true` and note when each piece comes.

    The clock starts when the request is written: opening a connection is not the server's work.
    """
    payload = msgspec.json.encode(body)
    record = Record(time.perf_counter())
    try:
        async with _connection(endpoint) as (reader, writer):
            record.sent = time.perf_counter()
            writer.write(endpoint.head("POST", path, len(payload)) + payload)
            await _read(reader, record)
    except (OSError, TimeoutError, httptools.HttpParserError) as error:
        record.error = f"{type(error).__name__}: {error}"
    if not record.error and not record.stamps:
        record.error = "an answer without text"
    return record


async def _read(reader: asyncio.StreamReader, record: Record) -> None:
    answer = _Answer()
    ended = False
    while not answer.is_complete and (data := await reader.read(_READ)):
        now = time.perf_counter()
        answer.parser.feed_data(data)
        if answer.status != 200:
            continue
        *lines, rest = answer.body.split(b"\n")
        answer.body = bytearray(rest)
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            value = bytes(line[5:]).strip()
            if value == b"[DONE]":
                ended = True
            else:
                _note(record, value, now)
    if answer.status != 200:
        record.error = f"HTTP {answer.status}: {bytes(answer.body[:300]).decode(errors='replace')}"
    elif not ended and not record.error:
        record.error = "the stream ended before [DONE]"
    record.output_tokens = record.output_tokens or len(record.stamps)


def _note(record: Record, value: bytes, now: float) -> None:
    try:
        event = _events.decode(value)
    except msgspec.DecodeError as error:
        record.error = f"an event that is not OpenAI's: {error}"
        return
    if event.error is not None:
        record.error = f"the stream ended with an error: {event.error}"
    if any(choice.has_text() for choice in event.choices):
        record.stamps.append(now)
    if usage := event.usage:
        record.prompt_tokens, record.output_tokens = usage.prompt_tokens, usage.completion_tokens
        details = usage.prompt_tokens_details
        record.cached_tokens = (details.cached_tokens or 0) if details else 0
