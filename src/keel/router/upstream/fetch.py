"""A request of the router's own: to check a worker, to ask it things, to abort."""

from __future__ import annotations

import asyncio

import msgspec

from keel.router.upstream.base import Call, Failure, Head, Upstream

_MAX_ANSWER = 8 * 2**20


class FetchError(Exception):
    """There is no answer."""


class Answer(msgspec.Struct, frozen=True):
    """A complete answer."""

    status: int
    body: bytes
    lines: bytes = b""


class _Collector:
    """Gathers an answer."""

    def __init__(self) -> None:
        self.future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._status, self._lines = 0, b""
        self._parts: list[bytes] = []
        self._size = 0
        self.over = False  # nothing more comes, and there is nothing to cancel

    def sent(self) -> None:
        """As `Sink.sent`."""

    def response(self, head: Head | None, data: bytes, end: bool) -> None:
        """As `Sink.response`."""
        self.over = end
        if head is not None:
            self._status, self._lines = head.status, head.lines
        self._size += len(data)
        if self._size <= _MAX_ANSWER:
            self._parts.append(data)
        if self.future.done():
            return
        if self._size > _MAX_ANSWER:
            self.future.set_exception(FetchError(f"more than {_MAX_ANSWER} bytes"))
        elif end:
            self.future.set_result(Answer(self._status, b"".join(self._parts), self._lines))

    def failed(self, failure: Failure) -> None:
        """As `Sink.failed`."""
        self.over = True
        if not self.future.done():
            self.future.set_exception(FetchError(failure.reason))


async def fetch(
    upstream: Upstream,
    method: str,
    target: str,
    *,
    timeout: float,
    headers: bytes = b"",
    body: bytes | None = None,
) -> Answer:
    """Ask a worker and wait for its whole answer.

    Args:
        timeout: seconds for all of it.

    Raises:
        FetchError: there is none, or none in time.
    """
    sink = _Collector()
    call = Call(
        method.encode(),
        target.encode(),
        headers,
        () if body is None else (body,),
        -1 if body is None else len(body),
    )
    running = upstream.send(call, sink)
    try:
        async with asyncio.timeout(timeout):
            return await sink.future
    except TimeoutError:
        raise FetchError(f"no answer within {timeout:g} s") from None
    finally:
        if not sink.over:
            running.cancel()
