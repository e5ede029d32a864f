"""The HTTP application: routes, errors, the API key."""

from __future__ import annotations

import hmac

from fastapi import FastAPI, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from keel.server.answers import ClientGone
from keel.server.anthropic import anthropic_routes
from keel.server.errors import ApiError, add_handlers, error_response
from keel.server.health import health_routes
from keel.server.native import keel_version, native_routes
from keel.server.openai import openai_routes
from keel.server.state import ServerState
from keel.server.text import text_routes

# What probes and scrapers ask, without a key.
_OPEN = ("/health", "/health_generate", "/metrics")


class _RequireKey:
    """Refuses requests without `Authorization: Bearer KEY`, or Anthropic's `x-api-key: KEY`."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app, self._key = app, key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in _OPEN:
            headers = dict(scope["headers"])
            given = headers.get(b"authorization", b"").removeprefix(b"Bearer ")
            if not hmac.compare_digest(given or headers.get(b"x-api-key", b""), self._key):
                error = ApiError("the API key is missing or wrong", 401)
                refusal = error_response(error, scope["path"])
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)


def make_app(state: ServerState) -> FastAPI:
    """The application of one server."""
    app = FastAPI(title="keel", version=keel_version(), docs_url=None, redoc_url=None)
    add_handlers(app)

    @app.exception_handler(ClientGone)
    async def gone(_: Request, __: ClientGone) -> Response:
        return Response(status_code=499)  # nginx's word for it; nobody reads this

    app.include_router(openai_routes(state))
    app.include_router(anthropic_routes(state))
    app.include_router(native_routes(state))
    app.include_router(text_routes(state))
    app.include_router(health_routes(state))
    if state.args.api_key is not None:
        app.add_middleware(_RequireKey, key=state.args.api_key)
    return app
