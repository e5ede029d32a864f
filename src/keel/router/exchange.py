"""One request on its way to one answer: it has exactly one outcome, whoever ends it first.

preparing → connecting → waiting (→ holding) → relaying → over. Before the answer's first byte goes
to the client the exchange may go back to connecting, with another worker.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from typing import TYPE_CHECKING

from keel.router.answer import framed_end, framed_piece, has_error_event, response_head
from keel.router.client import ClientConnection, ClientRequest
from keel.router.outcome import BAD, COMPLETE, GOOD, Outcome, Record, of_status
from keel.router.plan import CHAT, GENERATION, Plan
from keel.router.refusal import Refusal, refusal_for
from keel.router.splice import mint_rid, splice
from keel.router.upstream.base import Call, Failure, FailureKind, Head
from keel.router.upstream.base import Exchange as Running
from keel.router.worker import Role, Worker

if TYPE_CHECKING:
    from keel.router.prefill import Prefill
    from keel.router.router import Router

log = logging.getLogger("keel.router")

# A JSON answer up to this size goes out when it is complete, so that one which breaks off can
# still be had from another worker, or become a proper error.
_HOLD_BYTES = 1024 * 1024
# Above it pieces are not joined before they are written.
_JOIN_BYTES = 64 * 1024
_CLIENT_GONE_STATUS = 499  # nginx's word for it


class Exchange:
    """A client's request, the attempts to have it served, and the answer.

    It is a `Handling` for the client's connection and a `Sink` for the worker's. Everything that an
    attempt takes (the breaker's permit, its part of the load, the engine's work) is given back by
    `_leave_worker`, which every end of an attempt goes through.
    """

    __slots__ = (
        "_attempts",
        "_authorization",
        "_born",
        "_chunked",
        "_client",
        "_dispatched",
        "_error",
        "_error_event",
        "_events",
        "_first_byte",
        "_head",
        "_held",
        "_held_size",
        "_last",
        "_outcome",
        "_paused",
        "_permit",
        "_plan",
        "_prefill",
        "_relayed",
        "_request",
        "_request_id",
        "_rid",
        "_router",
        "_running",
        "_sent",
        "_status",
        "_timer",
        "_tried",
        "_worker",
    )

    def __init__(self, router: Router, client: ClientConnection, request: ClientRequest) -> None:
        self._router, self._client, self._request = router, client, request
        self._born = self._dispatched = self._last = time.monotonic()
        self._authorization = request.known.get(b"authorization")
        self._request_id = router.request_id(request)
        self._plan = Plan(b"")
        self._outcome: Outcome | None = None
        self._worker: Worker | None = None
        self._permit: int | None = None
        self._running: Running | None = None
        self._timer: asyncio.TimerHandle | asyncio.Future[None] | None = None
        self._tried: list[Worker] = []
        self._prefill: Prefill | None = None
        self._rid = self._error = ""
        self._attempts = self._status = self._held_size = 0
        self._head: Head | None = None
        self._held: list[bytes] | None = None
        self._sent = self._relayed = self._chunked = self._paused = False
        self._events = self._error_event = False
        self._first_byte = -1.0

    def start(self) -> None:
        """Read the request and send it to a worker; or refuse it."""
        router, request = self._router, self._request
        router.in_flight.add(self)
        try:
            self._plan = router.plan(request)
            request.body = b""
            if router.tokenisation is not None and request.path == CHAT:
                work = router.tokenisation.start(self._plan)
                if work is not None:
                    self._timer = work
                    work.add_done_callback(self._tokenised)
                    return
            self._dispatch()
        except Refusal as refusal:
            self._refuse(refusal)

    def _tokenised(self, work: asyncio.Future[None]) -> None:
        self._timer = None
        if self._outcome is not None or work.cancelled():
            return
        self._try_dispatch()

    def _try_dispatch(self) -> None:
        try:
            self._dispatch()
        except Refusal as refusal:
            self._refuse(refusal)

    # Towards a worker.

    def _dispatch(self) -> None:
        """Choose a worker and send the request.

        Raises:
            Refusal: there is none.
        """
        router, plan, request = self._router, self._plan, self._request
        members = plan.members
        if router.pd and request.path in GENERATION:
            worker, permit, members = self._choose_pair()
        else:
            role = Role.DECODE if router.pd else Role.PLAIN
            worker, permit = router.selector.choose(
                role, plan.model, plan.ask, length=plan.length, without=self._tried
            )
        self._worker, self._permit = worker, permit
        self._attempts += 1
        self._sent = False
        self._dispatched = self._last = time.monotonic()
        worker.begin(plan.ask.tokens)
        if plan.mints:
            self._rid = rid = mint_rid()
            added = b'"rid":"%b"' % rid.encode()
            members = members + b"," + added if members else added
        pieces = splice(plan.body, members)
        length = len(pieces[0]) if len(pieces) == 1 else sum(map(len, pieces))
        call = Call(
            request.method,
            request.target,
            self._headers(),
            pieces,
            length if length or request.method not in (b"GET", b"HEAD", b"DELETE") else -1,
        )
        self._running = worker.upstream.send(call, self)

    def _choose_pair(self) -> tuple[Worker, int, bytes]:
        """A decode worker, with a prefill worker at work for it from the first attempt on."""
        router, plan = self._router, self._plan
        if self._prefill is None:
            self._prefill = router.choose_prefill(plan)
        prefill = self._prefill
        try:
            decode, permit = router.selector.choose(
                Role.DECODE,
                plan.model,
                plan.ask,
                length=plan.length,
                without=self._tried,
                bucket=prefill.bucket,
            )
        except Refusal:
            prefill.drop()
            raise
        prefill.fire(self._request.target, self._headers(), plan)
        return decode, permit, prefill.members(plan)

    def _headers(self) -> bytes:
        return self._router.upstream_headers(self._request, self._plan, self._request_id)

    def sent(self) -> None:
        """As `Sink.sent`."""
        self._sent = True

    def response(self, head: Head | None, data: bytes, end: bool) -> None:
        """As `Sink.response`."""
        self._last = time.monotonic()
        if self._relayed and not end and self._chunked:  # the middle of a stream
            if self._events and b'"error"' in data and has_error_event(data):
                self._error_event = True
            self._client.write(framed_piece(data))
            return
        if head is not None:
            self._head = head
            self._events = head.event_stream
            if head.status == 503 and self._elsewhere():
                self._error = "status 503"
                self._leave_worker(Outcome.BACKPRESSURE, over=end)
                self._retry()
                return
            if head.json and not self._plan.stream:
                self._held = []
        if self._held is not None:
            self._held.append(data)
            self._held_size += len(data)
            if not end and self._held_size <= _HOLD_BYTES:
                return
            data, self._held = b"".join(self._held), None
        self._relay(data, end)
        if self._paused and self._running is not None:
            self._running.pause()

    def _relay(self, data: bytes, end: bool) -> None:
        head = self._head
        assert head is not None
        if self._events and b'"error"' in data and has_error_event(data):
            self._error_event = True
        pieces = []
        if not self._relayed:
            self._first_byte = self._last - self._born
            self._relayed = True
            self._status = head.status
            bodiless = self._request.method == b"HEAD" or head.status in (204, 304)
            length = head.length
            if length is None and end and not bodiless:
                length = len(data)
            self._chunked = length is None and not self._request.old and not bodiless
            if length is None and self._request.old and not bodiless:
                self._request.keep_alive = False  # the connection's end is the answer's end
            pieces.append(
                response_head(head, length, self._chunked, self._request, self._request_id)
            )
            self._plan.body, self._plan.fields = b"", None  # there is no way back any more
        if data:
            pieces.append(framed_piece(data) if self._chunked else data)
        if end and self._chunked:
            pieces.append(framed_end)
        if len(data) <= _JOIN_BYTES:
            self._client.write(b"".join(pieces))
        else:
            self._client.writelines(pieces)
        if end:
            self._running = None
            outcome = Outcome.ERROR_EVENT if self._error_event else of_status(head.status)
            self._finish(outcome)

    def failed(self, failure: Failure) -> None:
        """As `Sink.failed`."""
        self._running = None
        self._error = f"{failure.kind}: {failure.reason}"
        relayed = self._relayed
        outcome = Outcome.TRUNCATED if self._head is not None else Outcome.UNREACHABLE
        if relayed:
            self._finish(outcome)
            return
        may_repeat = not self._sent or self._plan.repeatable
        if failure.kind is FailureKind.CONNECT:
            self._router.suspect(self._worker)
        self._leave_worker(outcome)
        if may_repeat and self._attempts <= self._router.max_retries:
            self._retry()
        else:
            self._refuse_for(outcome)

    def _elsewhere(self) -> bool:
        """Whether a request that a worker has no room for may go to one that was not asked yet."""
        if self._attempts > self._router.max_retries or not self._plan.repeatable:
            return False
        role = Role.DECODE if self._router.pd else Role.PLAIN
        known = {*self._tried, self._worker}
        return any(w.spec.role is role and w.usable and w not in known for w in self._router.table)

    def _retry(self) -> None:
        """Ask another worker at once; when all were asked, all of them again after a while."""
        self._router.metrics.retried()
        self._head, self._held, self._held_size, self._rid = None, None, 0, ""
        if self._worker is not None and self._worker not in self._tried:
            self._tried.append(self._worker)
        try:
            self._dispatch()
        except Refusal as refusal:
            if refusal.status != 503 or self._attempts > self._router.max_retries:
                self._refuse(refusal)
                return
            self._tried.clear()
            low, high = self._router.backoff
            wait = min(high, low * 2 ** (self._attempts - 1)) * (0.8 + 0.4 * random.random())
            self._timer = asyncio.get_running_loop().call_later(wait, self._again)

    def _again(self) -> None:
        self._timer = None
        self._try_dispatch()

    # Other ends.

    def client_gone(self) -> None:
        """As `Handling.client_gone`."""
        self._finish(Outcome.CANCELLED)

    def client_paused(self) -> None:
        """As `Handling.client_paused`."""
        self._paused = True
        if self._running is not None:
            self._running.pause()

    def client_resumed(self) -> None:
        """As `Handling.client_resumed`."""
        self._paused = False
        self._last = time.monotonic()
        if self._running is not None:
            self._running.resume()

    def check(self, now: float) -> None:
        """End what took too long. Called by the janitor."""
        router = self._router
        if now - self._born > router.stale_after:
            self._refuse_for(Outcome.EXPIRED)
        elif self._worker is None:
            return
        elif self._head is None or self._held is not None:
            if now - self._dispatched > router.request_timeout:
                self._refuse_for(Outcome.TIMEOUT)
        elif now - self._last > router.idle_timeout:
            self._error = "the client takes nothing" if self._paused else "the worker is silent"
            self._refuse_for(Outcome.CANCELLED if self._paused else Outcome.TIMEOUT)

    def shut_down(self) -> None:
        """The router ends."""
        self._refuse_for(Outcome.SHUTDOWN)

    def _refuse_for(self, outcome: Outcome) -> None:
        """End without the worker's answer; where the client has a part of it, without the rest."""
        if self._relayed:
            self._finish(outcome)
            return
        where = f" ({self._worker.url}: {self._error})" if self._worker and self._error else ""
        self._answer(refusal_for(outcome, where), outcome)

    def _refuse(self, refusal: Refusal) -> None:
        unavailable = refusal.status >= 500
        self._answer(refusal, Outcome.UNAVAILABLE if unavailable else Outcome.REJECTED)

    def _answer(self, refusal: Refusal, outcome: Outcome) -> None:
        if self._outcome is not None:
            return
        self._status = refusal.status
        self._error = self._error or refusal.message
        self._router.write_refusal(self._client, self._request, refusal, self._request_id)
        self._finish(outcome, answered=True)

    # The one end.

    def _finish(self, outcome: Outcome, *, answered: bool = False) -> None:
        if self._outcome is not None:
            return
        self._outcome = outcome
        complete = outcome in COMPLETE
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._leave_worker(outcome, over=complete)
        router, now = self._router, time.monotonic()
        router.in_flight.discard(self)
        request, worker = self._request, self._worker
        router.record(
            Record(
                self._request_id,
                self._rid,
                worker.url if worker is not None else "",
                self._plan.model,
                request.path.decode("latin-1"),
                self._plan.stream,
                self._status or _CLIENT_GONE_STATUS,
                outcome,
                self._first_byte,
                now - self._born,
                self._attempts,
                self._error,
            )
        )
        if complete or answered:
            self._client.finished(request.keep_alive)
        else:
            sized = self._head is not None and self._head.length is not None
            self._client.cut(drained=(self._chunked or sized) and not self._paused)

    def _leave_worker(self, outcome: Outcome, *, over: bool = False) -> None:
        """Give back what the attempt took. Does nothing when that has been done.

        Args:
            over: the engine has finished, and its connection has nothing more for us.
        """
        worker, permit = self._worker, self._permit
        if worker is None or permit is None:
            return
        self._permit = None
        worker.end(self._plan.ask.tokens)
        if outcome in GOOD:
            worker.breaker.succeed(permit)
        elif outcome in BAD:
            worker.breaker.fail(permit)
        else:
            worker.breaker.release(permit)
        running, self._running = self._running, None
        if running is not None and not over:
            running.cancel()
        refused = self._head is not None and not 200 <= self._head.status < 300
        if self._rid and self._sent and not over and not refused:
            self._router.aborter.abort(worker, self._rid, self._authorization)
