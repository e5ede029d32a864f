"""What became of a request: one value, from which access log and metrics are both made."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Outcome(StrEnum):
    """How a request ended. Every request ends in exactly one of these."""

    __hash__ = str.__hash__  # Enum's is several times as slow, and equality is that of str

    SUCCESS = "success"  # the worker's 2xx or 3xx answer, complete
    ERROR_EVENT = "error_event"  # a complete stream in which the worker reported an error
    CLIENT_ERROR = "client_error"  # the worker's 4xx
    BACKPRESSURE = "backpressure"  # the worker's 429 or 503
    SERVER_ERROR = "server_error"  # the worker's other 5xx
    UNREACHABLE = "unreachable"  # no worker gave an answer
    TRUNCATED = "truncated"  # the worker's answer broke off
    TIMEOUT = "timeout"  # the worker was silent for too long
    EXPIRED = "expired"  # older than --stale-request-timeout-secs
    CANCELLED = "cancelled"  # the client went away
    SHUTDOWN = "shutdown"  # the router ended first
    REJECTED = "rejected"  # refused by the router, the client's doing
    LIMITED = "limited"  # refused by the router, for its own limits
    UNAVAILABLE = "unavailable"  # refused by the router, for lack of workers


# The worker's answer came whole: the engine has finished, and there is nothing to abort.
COMPLETE = frozenset(
    (
        Outcome.SUCCESS,
        Outcome.ERROR_EVENT,
        Outcome.CLIENT_ERROR,
        Outcome.BACKPRESSURE,
        Outcome.SERVER_ERROR,
    )
)
# What speaks for the worker, and what against it; the others say nothing about it.
GOOD = frozenset((Outcome.SUCCESS, Outcome.ERROR_EVENT, Outcome.CLIENT_ERROR))
BAD = frozenset((Outcome.SERVER_ERROR, Outcome.UNREACHABLE, Outcome.TRUNCATED, Outcome.TIMEOUT))


class Record(msgspec.Struct, frozen=True, gc=False):
    """One request, seen from its end.

    Args:
        worker: URL of the worker that was chosen last, or empty.
        engine_rid: the id that the router minted for the last attempt, or empty.
        status: of HTTP as the client saw it; 499 where it left before any.
        first_byte: seconds to the first byte for the client; negative where there was none.
        latency: seconds.
        attempts: workers tried.
    """

    request_id: str
    engine_rid: str
    worker: str
    model: str
    route: str
    stream: bool
    status: int
    outcome: Outcome
    first_byte: float
    latency: float
    attempts: int
    error: str


def of_refusal(status: int) -> Outcome:
    """The outcome of a request that the router refused before a worker had it."""
    if status in (408, 429):
        return Outcome.LIMITED
    return Outcome.UNAVAILABLE if status >= 500 else Outcome.REJECTED


def of_status(status: int) -> Outcome:
    """The outcome of a complete answer of a worker."""
    if status < 400:
        return Outcome.SUCCESS
    if status in (429, 503):
        return Outcome.BACKPRESSURE
    return Outcome.CLIENT_ERROR if status < 500 else Outcome.SERVER_ERROR
