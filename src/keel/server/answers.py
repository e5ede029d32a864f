"""From a prepared request to its text, for all kinds of API."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import msgspec
from fastapi import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from keel.messages import Finish, SamplingParams
from keel.server.errors import ApiError, from_finish
from keel.server.state import ServerState
from keel.tokenizer.answer import AnswerText

T = TypeVar("T")


@dataclass(frozen=True)
class Ask:
    """One answer that is wanted.

    Args:
        stop: strings that end it.
        keep_stop: the matched one stays in the text.
    """

    rid: str
    prompt_ids: list[int]
    params: SamplingParams
    stop: tuple[str, ...] = ()
    keep_stop: bool = False
    skip_special_tokens: bool = True


@dataclass(frozen=True)
class Piece:
    """What became certain of an answer.

    Args:
        index: of the answer among those asked together.
        finish: with the last piece; `matched` is the stop string or token.
        completion_tokens: so far.
    """

    index: int
    text: str
    ids: list[int]
    finish: Finish | None
    matched: str | int | None
    completion_tokens: int
    cached_tokens: int


@dataclass
class Whole:
    """A complete answer."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    finish: Finish = field(default_factory=lambda: Finish("abort"))
    matched: str | int | None = None
    cached_tokens: int = 0


def choices_of(ask: Ask, n: int) -> list[Ask]:
    """`n` answers to one prompt; a given seed is followed by the next ones."""
    if n == 1:
        return [ask]
    seed = ask.params.seed
    seeds = [None if seed is None else seed + index for index in range(n)]
    return [
        replace(
            ask,
            rid=f"{ask.rid}-{index}",
            params=msgspec.structs.replace(ask.params, seed=seeds[index]),
        )
        for index in range(n)
    ]


async def pieces(state: ServerState, ask: Ask, index: int = 0) -> AsyncGenerator[Piece]:
    """An answer as it grows; the last piece has `finish`. Closing it early aborts the request.

    Raises:
        ApiError: the scheduler refused the request, or died.
    """
    text = AnswerText(
        state.tokenizer,
        ask.stop,
        skip_special_tokens=ask.skip_special_tokens,
        keep_stop=ask.keep_stop,
    )
    started = last = time.perf_counter()
    count = 0
    stream = state.client.generate(ask.rid, ask.prompt_ids, ask.params)
    async with contextlib.aclosing(stream):
        async for tokens in stream:
            finish = tokens.finish
            if finish is not None and finish.kind == "error":
                raise from_finish(finish)
            now = time.perf_counter()
            if tokens.ids:
                times = state.metrics
                observe = times.inter_token_latency if count else times.time_to_first_token
                observe.observe(now - last)
                last = now
            count += len(tokens.ids)
            by_token = finish.matched if finish is not None and finish.kind == "stop" else None
            trim = by_token is not None and not ask.keep_stop
            shown = text.add(tokens.ids[:-1] if trim else tokens.ids)
            if finish is not None:
                shown += text.finish()
            if text.matched is not None:
                finish = Finish("stop")
            matched = text.matched if text.matched is not None else by_token
            if finish is not None:
                state.metrics.e2e_latency.observe(now - started)
                state.metrics.requests.inc()
            yield Piece(index, shown, tokens.ids, finish, matched, count, tokens.cached_tokens)
            if finish is not None:
                return


async def merged(state: ServerState, asks: Sequence[Ask]) -> AsyncGenerator[Piece]:
    """Several answers as they grow, pieces in order of arrival."""
    if len(asks) == 1:
        async with contextlib.aclosing(pieces(state, asks[0])) as single:
            async for piece in single:
                yield piece
        return
    queue: asyncio.Queue[Piece | None] = asyncio.Queue()

    async def pump(index: int, ask: Ask) -> None:
        async with contextlib.aclosing(pieces(state, ask, index)) as stream:
            async for piece in stream:
                queue.put_nowait(piece)

    async def pump_all() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for index, ask in enumerate(asks):
                    group.create_task(pump(index, ask))
        finally:
            queue.put_nowait(None)

    pumping = asyncio.create_task(pump_all())
    try:
        while (grown := await queue.get()) is not None:
            yield grown
        try:
            await pumping
        except* ApiError as errors:
            raise first_of(errors) from None
    finally:
        pumping.cancel()
        with contextlib.suppress(asyncio.CancelledError, BaseExceptionGroup):
            await pumping


def first_of(errors: BaseExceptionGroup[ApiError]) -> ApiError:
    """One of the failures of a group."""
    found: BaseException = errors
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert isinstance(found, ApiError)
    return found


async def wholes(state: ServerState, asks: Sequence[Ask]) -> list[Whole]:
    """Several answers, complete, in the order of `asks`."""
    answers = [Whole() for _ in asks]
    async with contextlib.aclosing(merged(state, asks)) as stream:
        async for piece in stream:
            answer = answers[piece.index]
            answer.text += piece.text
            answer.ids += piece.ids
            answer.cached_tokens = piece.cached_tokens
            if piece.finish is not None:
                answer.finish, answer.matched = piece.finish, piece.matched
    return answers


class ClientGone(Exception):
    """The client went away; nobody reads the response any more."""


async def until_disconnect(request: Request, work: Awaitable[T]) -> T:
    """Do the work, and drop it at once when the client goes away.

    Raises:
        ClientGone: it did.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.create_task(_disconnected(request.receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Server-sent events from an async iterator, closed at once when the client goes away.

    Starlette's own streaming response notices that only with some versions of the ASGI spec.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes]) -> None:
        self.status_code = 200
        self.background = None
        self.body = b""
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pump = asyncio.create_task(self._pump(send))
        gone = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait({pump, gone}, return_when=asyncio.FIRST_COMPLETED)
            if pump.done():
                pump.result()
        finally:
            for one in (pump, gone):
                one.cancel()
            await asyncio.gather(pump, gone, return_exceptions=True)

    async def _pump(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        try:
            await send(start)
            async for event in self._events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await self._events.aclose()
