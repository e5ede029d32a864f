"""A router process while it serves: its listener, its janitor, its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import AsyncIterator

from keel.router.local import Control, LocalRoutes
from keel.router.router import Router

log = logging.getLogger("keel.router")


@contextlib.asynccontextmanager
async def serving(router: Router, control: Control, listener: socket.socket) -> AsyncIterator[None]:
    """Answer requests on a listening socket until the block ends, and then those in hand."""
    loop = asyncio.get_running_loop()
    LocalRoutes(router, control)
    router.table.started = True
    server = await loop.create_server(router.connection, sock=listener, backlog=4096)
    host, port = listener.getsockname()[:2]
    log.info("listening on http://%s:%d for %d workers", host, port, len(router.table))
    janitor = loop.create_task(_sweep_for_ever(router))
    try:
        yield
    finally:
        server.close()
        await _shut_down(router)
        janitor.cancel()
        log.info("goodbye")


async def _sweep_for_ever(router: Router) -> None:
    """The janitor: looks at everything in hand, often enough for the shortest limit."""
    args = router.args
    shortest = min(
        args.request_timeout_secs,
        args.stream_idle_timeout_secs,
        args.stale_request_timeout_secs,
        args.client_idle_timeout_secs,
    )
    tick = min(1.0, max(0.01, shortest / 5))
    while True:
        await asyncio.sleep(tick)
        router.sweep(time.monotonic())


async def _shut_down(router: Router) -> None:
    """Let requests finish for the grace period; abort the rest, and see the aborts out."""
    router.stopping = True
    for client in tuple(router.connections):
        client.close_when_idle()
    until = time.monotonic() + router.args.shutdown_grace_period_secs
    if router.in_flight:
        log.info("finishing %d requests, taking no new ones", len(router.in_flight))
    while (router.in_flight or router.legs) and time.monotonic() < until:
        await asyncio.sleep(0.02)
    for exchange in tuple(router.in_flight):
        exchange.shut_down()
    await router.aborter.settle()
    router.health.close()
    for worker in router.table:
        worker.upstream.close_idle()
    for client in tuple(router.connections):
        client.close()
    router.access_log.flush()
