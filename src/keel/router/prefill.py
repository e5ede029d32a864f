"""The prefill half of a request whose answer a decode worker gives."""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from keel.router.plan import Plan
from keel.router.splice import splice
from keel.router.upstream.base import Call, Failure, Head
from keel.router.upstream.base import Exchange as Running
from keel.router.worker import Worker

log = logging.getLogger("keel.router")


@dataclass(frozen=True)
class Bootstrap:
    """Where the decode worker meets the prefill worker; both halves are told the same."""

    host: str
    port: int | None
    room: int

    def members(self) -> bytes:
        """As members of the request's JSON; a room that the client brought loses to ours."""
        port = "null" if self.port is None else str(self.port)
        return (
            f'"bootstrap_host":{json.dumps(self.host)},"bootstrap_port":{port},'
            f'"bootstrap_room":{self.room}'
        ).encode()


class Prefill:
    """Runs by itself: it is neither waited for nor aborted, and its failure is not the client's.

    Args:
        counted: called with `success` or `failure` at its end.
        legs: those at work, for the janitor; it is in there from `fire` to its end.
    """

    def __init__(
        self, worker: Worker, permit: int, legs: set[Prefill], counted: Callable[[str, str], None]
    ) -> None:
        self._worker, self._permit = worker, permit
        self._legs, self._counted = legs, counted
        self._running: Running | None = None
        self._tokens = 0
        self._status = 0
        self._fired = self._over = False
        self._since = time.monotonic()
        # A room is the key under which the engines keep the transfer: one that comes twice at a
        # time crashes them. 63 bits, since they hold it in a signed integer.
        self.bootstrap = Bootstrap(
            worker.bootstrap_host, worker.spec.bootstrap_port, secrets.randbits(63)
        )

    @property
    def bucket(self) -> float | None:
        """The length bucket, which is that of the decode worker too."""
        return self._worker.spec.bucket

    def members(self, plan: Plan) -> bytes:
        """What both halves of the request carry besides the client's body."""
        ours = self.bootstrap.members()
        return plan.members + b"," + ours if plan.members else ours

    def drop(self) -> None:
        """There is no decode worker; it never begins."""
        if not self._fired and not self._over:
            self._over = True
            self._worker.breaker.release(self._permit)

    def fire(self, target: bytes, headers: bytes, plan: Plan) -> None:
        """Send it; a second time does nothing."""
        if self._fired or self._over:
            return
        self._fired = True
        self._tokens = plan.ask.tokens
        self._worker.begin(self._tokens)
        self._legs.add(self)
        pieces = splice(plan.body, self.members(plan))
        call = Call(b"POST", target, headers, pieces, sum(map(len, pieces)))
        self._running = self._worker.upstream.send(call, self)

    def sent(self) -> None:
        """As `Sink.sent`."""

    def response(self, head: Head | None, data: bytes, end: bool) -> None:
        """As `Sink.response`."""
        if head is not None:
            self._status = head.status
        if end:
            self._running = None
            if self._status >= 500:
                log.warning("prefill on %s: status %d", self._worker.url, self._status)
            self._end(ok=self._status < 500, neutral=self._status in (429, 503))

    def failed(self, failure: Failure) -> None:
        """As `Sink.failed`."""
        self._running = None
        log.warning("prefill on %s: %s: %s", self._worker.url, failure.kind, failure.reason)
        self._end(ok=False)

    def check(self, now: float, timeout: float) -> None:
        """End what took too long."""
        if now - self._since > timeout:
            self._end(ok=False)

    def _end(self, *, ok: bool, neutral: bool = False) -> None:
        if self._over:
            return
        self._over = True
        self._legs.discard(self)
        self._worker.end(self._tokens)
        breaker = self._worker.breaker
        (breaker.release if neutral else breaker.succeed if ok else breaker.fail)(self._permit)
        if self._running is not None:
            self._running.cancel()
            self._running = None
        self._counted(self._worker.url, "success" if ok else "failure")
