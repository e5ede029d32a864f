"""One request on its way to one answer: it has exactly one outcome, whoever ends it first.

preparing → connecting → waiting (→ holding) → relaying → over. Before the answer's first byte goes
to the client the exchange may go back to connecting, with another worker.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from keel.router.client import ClientConnection, ClientRequest
from keel.router.outcome import BAD, COMPLETE, GOOD, Outcome, Record, of_refusal
from keel.router.plan import CHAT, GENERATION, Plan
from keel.router.refusal import Refusal, refusal_for
from keel.router.relay import Relay
from keel.router.splice import mint_rid, splice
from keel.router.upstream.base import Call, Failure, FailureKind, Head
from keel.router.upstream.base import Exchange as Running
from keel.router.worker import Role, Worker

if TYPE_CHECKING:
    from keel.router.prefill import Prefill
    from keel.router.router import Router

log = logging.getLogger("keel.router")

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
        "_client",
        "_dispatched",
        "_error",
        "_last",
        "_outcome",
        "_paused",
        "_permit",
        "_plan",
        "_prefill",
        "_relay",
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
        self._relay = Relay(client, request, self._request_id)
        self._rid = self._error = ""
        self._attempts = self._status = 0
        self._sent = self._paused = False

    def start(self) -> None:
        """Read the request and send it to a worker; or refuse it."""
        router, request = self._router, self._request
        router.in_flight.add(self)
        try:
            self._plan = router.plan(request)
            request.body = b""
            if router.admission is None or router.admission.enter(self):
                self._begin()
        except Refusal as refusal:
            self._refuse(refusal)

    def admitted(self) -> None:
        """As `Waiter.admitted`."""
        try:
            self._begin()
        except Refusal as refusal:
            self._refuse(refusal)

    def turned_away(self, refusal: Refusal) -> None:
        """As `Waiter.turned_away`."""
        self._refuse(refusal)

    def _begin(self) -> None:
        """Find out the request's tokens where routing wants them; then send it."""
        tokenisation = self._router.tokenisation
        if tokenisation is not None and self._request.path == CHAT:
            work = tokenisation.start(self._plan)
            if work is not None:
                self._timer = work
                work.add_done_callback(self._tokenised)
                return
        self._dispatch()

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
        relay = self._relay
        if relay.flowing and not end:
            relay.piece(data)
            return
        if head is not None:
            relay.begin(head, hold=head.json and not self._plan.stream)
            if head.status == 503 and self._elsewhere():
                self._error = "status 503"
                self._leave_worker(Outcome.BACKPRESSURE, over=end)
                self._retry()
                return
        if not relay.take(data, end):
            return
        self._plan.body, self._plan.fields = b"", None  # there is no way back any more
        if end:
            self._running = None
            self._finish(relay.outcome)
        elif self._paused and self._running is not None:
            self._running.pause()

    def failed(self, failure: Failure) -> None:
        """As `Sink.failed`."""
        self._running = None
        self._error = f"{failure.kind}: {failure.reason}"
        outcome = Outcome.TRUNCATED if self._relay.head is not None else Outcome.UNREACHABLE
        if self._relay.began:
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
        self._relay.forget()
        self._rid = ""
        if self._worker is not None and self._worker not in self._tried:
            self._tried.append(self._worker)
        try:
            self._dispatch()
        except Refusal as refusal:
            if refusal.status != 503 or self._attempts > self._router.max_retries:
                self._refuse(refusal)
                return
            self._tried.clear()
            wait = self._router.backoff.after(self._attempts)
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
        elif self._relay.head is None or self._relay.holding:
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
        if self._relay.began:
            self._finish(outcome)
            return
        where = f" ({self._worker.url}: {self._error})" if self._worker and self._error else ""
        self._answer(refusal_for(outcome, where), outcome)

    def _refuse(self, refusal: Refusal) -> None:
        self._answer(refusal, of_refusal(refusal.status))

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
        if router.admission is not None:
            router.admission.leave(self)
        request, worker, relay = self._request, self._worker, self._relay
        status = self._status
        if relay.began and relay.head is not None:
            status = relay.head.status
        router.record(
            Record(
                self._request_id,
                self._rid,
                worker.url if worker is not None else "",
                self._plan.model,
                request.path.decode("latin-1"),
                self._plan.stream,
                status or _CLIENT_GONE_STATUS,
                outcome,
                relay.first_at - self._born if relay.began else -1.0,
                now - self._born,
                self._attempts,
                self._error,
            )
        )
        if complete or answered:
            self._client.finished(request.keep_alive)
        else:
            self._client.cut(drained=relay.shows_its_end and not self._paused)

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
        if self._rid and self._sent and not over and not self._relay.refused:
            self._router.aborter.abort(worker, self._rid, self._authorization)
