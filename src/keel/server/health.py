"""Whether the server can answer, cheaply and for real; and its metrics."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from keel.messages import SamplingParams
from keel.server.answers import until_disconnect
from keel.server.errors import ApiError
from keel.server.prepare import check_serving
from keel.server.state import ServerState

# A generated token takes at most that long, or the server counts as ill.
_PATIENCE_SECONDS = 20.0


def health_routes(state: ServerState) -> APIRouter:
    """`/health`, `/health_generate`, `/metrics`."""
    routes = APIRouter(tags=["health"])

    @routes.get("/health")
    async def health() -> Response:
        check_serving(state)
        return Response(status_code=200)

    @routes.get("/health_generate")
    async def health_generate(request: Request) -> Response:
        check_serving(state)
        if not await until_disconnect(request, _answers(state)):
            raise ApiError(f"no token came within {_PATIENCE_SECONDS:.0f} s", 503)
        return Response(status_code=200)

    if state.args.enable_metrics:

        @routes.get("/metrics")
        async def metrics() -> Response:
            return Response(state.metrics.render(), media_type=CONTENT_TYPE_LATEST)

    return routes


async def _answers(state: ServerState) -> bool:
    """Whether tokens come: those of running requests, or else one of our own."""
    client, asked = state.client, time.monotonic()
    if client.num_streams:
        while client.num_streams and time.monotonic() - asked < _PATIENCE_SECONDS:
            if client.last_heard > asked:
                return True
            await asyncio.sleep(0.02)
    params = SamplingParams(max_new_tokens=1, temperature=0.0)
    rid = f"HEALTH_CHECK_{uuid.uuid4().hex}"
    with contextlib.suppress(TimeoutError):
        async with (
            asyncio.timeout(_PATIENCE_SECONDS),
            contextlib.aclosing(
                client.generate(rid, [state.config.bos_token_id or 0], params)
            ) as answer,
        ):
            async for tokens in answer:
                if tokens.ids:
                    return True
    return False
