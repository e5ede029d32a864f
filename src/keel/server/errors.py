"""Refusals in the shape of OpenAI's API, and of Anthropic's below its path."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from keel.errors import KeelError
from keel.messages import Finish


class ApiError(Exception):
    """A request that is refused.

    Args:
        message: one sentence: what is wrong, with the value.
        status: of HTTP.
        param: the field that is wrong.
        code: of OpenAI, like `context_length_exceeded`.
    """

    def __init__(
        self, message: str, status: int = 400, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.message, self.status, self.param, self.code = message, status, param, code


_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "internal_server_error",
    503: "service_unavailable_error",
}


def error_body(error: ApiError) -> dict[str, Any]:
    """`{"error": {...}}`."""
    return {
        "error": {
            "message": error.message,
            "type": _TYPES.get(error.status, "invalid_request_error"),
            "param": error.param,
            "code": error.code,
        }
    }


_ANTHROPIC = "/v1/messages"
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}


def anthropic_body(error: ApiError) -> dict[str, Any]:
    """`{"type": "error", "error": {...}}`."""
    kind = _ANTHROPIC_TYPES.get(error.status, "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}


def error_response(error: ApiError, path: str = "") -> JSONResponse:
    """The response of a refusal, as clients of that path read it."""
    headers = {"Retry-After": "1"} if error.status in (429, 503) else None
    if error.status == 401:
        headers = {"WWW-Authenticate": "Bearer"}
    body = anthropic_body(error) if path.startswith(_ANTHROPIC) else error_body(error)
    return JSONResponse(body, status_code=error.status, headers=headers)


def from_finish(finish: Finish) -> ApiError:
    """What the scheduler refused."""
    return ApiError(finish.message, finish.status)


def add_handlers(app: FastAPI) -> None:
    """Make every failure of a handler an error body that its clients read."""

    def respond(request: Request, error: ApiError) -> JSONResponse:
        return error_response(error, request.url.path)

    @app.exception_handler(ApiError)
    async def refused(request: Request, error: ApiError) -> JSONResponse:
        return respond(request, error)

    @app.exception_handler(KeelError)
    async def failed(request: Request, error: KeelError) -> JSONResponse:
        return respond(request, ApiError(error.what, 500))

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if part != "body")
        if first["type"] == "json_invalid":
            detail = (first.get("ctx") or {}).get("error", "")
            return respond(request, ApiError(f"the body is not JSON: {detail}".rstrip(": ")))
        if first["type"] == "extra_forbidden":
            message = f"unrecognized request argument: {where}"
            return respond(request, ApiError(message, param=where))
        if not where and "json" not in request.headers.get("content-type", ""):
            message = "the body is read as JSON only with content-type: application/json"
            return respond(request, ApiError(message))
        message = f"{where}: {first['msg']}" if where else str(first["msg"])
        return respond(request, ApiError(message, param=where or None))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        message = f"{request.method} {request.url.path}: {error.detail}"
        return respond(request, ApiError(message, error.status_code))

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> JSONResponse:
        # Starlette logs the traceback; the client is told only that it is not at fault.
        return respond(
            request, ApiError("the server failed on this request; its log says how", 500)
        )
