"""Telling an engine that nobody waits for a request any more."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from keel.router.upstream.fetch import FetchError, fetch
from keel.router.worker import Worker

log = logging.getLogger("keel.router")

ABORT_TIMEOUT_SECONDS = 5.0


class Aborter:
    """Sends aborts beside everything else. They delay nobody, and what becomes of them says nothing
    about the worker.

    Args:
        counted: called with `sent` and then `failed` where it failed.
    """

    def __init__(self, counted: Callable[[str], None]) -> None:
        self._counted = counted
        self._running: set[asyncio.Task[None]] = set()

    def abort(self, worker: Worker, rid: str, authorization: bytes | None) -> None:
        """Abort a request by the id that the router minted for it.

        The engine takes the id for a prefix, so an id that the router did not mint could hit
        requests of others.
        """
        task = asyncio.get_running_loop().create_task(self._send(worker, rid, authorization))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _send(self, worker: Worker, rid: str, authorization: bytes | None) -> None:
        headers = b"content-type: application/json\r\n"
        if authorization is not None:
            headers += b"authorization: " + authorization + b"\r\n"
        body = b'{"rid":"%b","abort_all":false}' % rid.encode()
        self._counted("sent")
        try:
            answer = await fetch(
                worker.upstream,
                "POST",
                "/abort_request",
                timeout=ABORT_TIMEOUT_SECONDS,
                headers=headers,
                body=body,
            )
        except FetchError as error:
            self._failed(worker, rid, str(error))
        else:
            if not 200 <= answer.status < 300:
                self._failed(worker, rid, f"status {answer.status}")

    def _failed(self, worker: Worker, rid: str, why: str) -> None:
        self._counted("failed")
        log.warning("the engine %s was not told to abort %s: %s", worker.url, rid, why)

    async def settle(self) -> None:
        """Wait for the aborts that are on their way; each takes ABORT_TIMEOUT_SECONDS at most."""
        if self._running:
            await asyncio.wait(self._running)
