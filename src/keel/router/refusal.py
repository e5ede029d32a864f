"""Answers that the router gives itself: a status, a code for machines, a sentence for people."""

from __future__ import annotations

import json

from keel.router.outcome import Outcome

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    502: "upstream_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}


class Refusal(Exception):
    """A request that the router answers instead of a worker.

    Args:
        status: of HTTP.
        code: stable; in the header `x-router-error-code` and as `error.code` of the body.
        message: one sentence, with the value that was wrong.
        param: the field that was wrong.
    """

    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.param = status, code, message, param

    def body(self) -> bytes:
        """The error in the shape of OpenAI's API."""
        error = {
            "message": self.message,
            "type": _TYPES.get(self.status, "router_error"),
            "param": self.param,
            "code": self.code,
        }
        return json.dumps({"error": error}).encode()


def invalid_json(why: str) -> Refusal:
    """The body cannot be read."""
    return Refusal(400, "invalid_request", f"the body is not a JSON object: {why}")


def no_workers(model: str) -> Refusal:
    """Nobody is there who could serve."""
    of = f" of {model}" if model else ""
    return Refusal(503, "no_available_workers", f"no worker{of} can take requests now")


def breaker_open(url: str) -> Refusal:
    """Workers are there, but their breakers are open."""
    return Refusal(503, "breaker_open", f"the circuit breaker of {url} is open; try again later")


def unknown_model(model: str) -> Refusal:
    """Several models are served, and this is none of them."""
    return Refusal(404, "model_not_found", f"no worker serves the model {model!r}", "model")


_SENTENCES = {
    Outcome.UNREACHABLE: (502, "upstream_unreachable", "no worker gave an answer"),
    Outcome.TRUNCATED: (502, "upstream_truncated", "the worker's answer broke off"),
    Outcome.TIMEOUT: (504, "upstream_timeout", "the worker did not answer in time"),
    Outcome.EXPIRED: (504, "stale_request_expired", "the request took too long and was ended"),
    Outcome.SHUTDOWN: (503, "router_shutting_down", "the router is shutting down"),
    Outcome.CANCELLED: (408, "client_stalled", "the client took nothing of its answer"),
}


def refusal_for(outcome: Outcome, where: str) -> Refusal:
    """What a client is told of a request that a worker had and that ended without its answer."""
    status, code, text = _SENTENCES[outcome]
    return Refusal(status, code, text + where)
