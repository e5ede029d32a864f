"""What all requests of a router process share."""

from __future__ import annotations

import itertools
import logging
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from keel.args.router import RouterArgs
from keel.args.router_values import flat
from keel.errors import ArgumentError
from keel.router.abort import Aborter
from keel.router.access_log import AccessLog
from keel.router.admission import Admission, Limits
from keel.router.answer import own_answer
from keel.router.breaker import BreakerConfig
from keel.router.client import ClientConnection, ClientRequest, Handling
from keel.router.exchange import Exchange
from keel.router.headers import AllowList
from keel.router.health import HealthChecker, HealthConfig
from keel.router.load import LoadBoard
from keel.router.metrics import Metrics, Snapshot
from keel.router.outcome import Record
from keel.router.plan import GENERATION, Plan, plan_of
from keel.router.policies import PolicyConfig
from keel.router.prefill import Prefill
from keel.router.refusal import Refusal
from keel.router.sampling import SamplingContract
from keel.router.selection import PolicyChoice, Selector
from keel.router.upstream.base import Upstream
from keel.router.upstream.h1 import H1Upstream
from keel.router.worker import Role, Worker, WorkerSpec, WorkerTable

if TYPE_CHECKING:
    from keel.router.tokenisation import Tokenisation

log = logging.getLogger("keel.router")

LocalHandler = Callable[[ClientConnection, ClientRequest], Handling]


class Router:
    """One router process: its workers, the requests it has in hand, what it counted."""

    def __init__(self, args: RouterArgs, board: LoadBoard, log_descriptor: int = 2) -> None:
        self.args = args
        self.pd = args.pd_disaggregation
        self.stale_after = args.stale_request_timeout_secs
        self.request_timeout = args.request_timeout_secs
        self.idle_timeout = args.stream_idle_timeout_secs
        self.max_retries = 0 if args.disable_retries else args.retry_max_retries
        self.backoff = Backoff(
            args.retry_initial_backoff_ms / 1e3,
            args.retry_max_backoff_ms / 1e3,
            args.retry_backoff_multiplier,
            args.retry_jitter_factor,
        )
        limits = limits_of(args)
        self.admission = Admission(board, limits) if limits is not None else None
        self.metrics = Metrics()
        self.access_log = AccessLog(log_descriptor, enabled=not args.disable_access_log)
        self.aborter = Aborter(self.metrics.aborted)
        self.in_flight: set[Exchange] = set()
        self.legs: set[Prefill] = set()
        self.connections: set[ClientConnection] = set()
        self.stopping = False
        self.tokenisation: Tokenisation | None = None
        self.local: dict[bytes, LocalHandler] = {}
        self.local_below: dict[bytes, LocalHandler] = {}
        self.table = WorkerTable(
            board, breaker_config(args), self.make_upstream, args.slow_start_secs
        )
        self.selector = Selector(self.table, policy_choice(args), policy_config(args))
        self._bearer = f"Bearer {args.api_key}".encode() if args.api_key else None
        self.health = HealthChecker(
            self.table, health_config(args), self._own_authorization(), self.speak_http2
        )
        self._contract = None
        if args.sampling_defaults:
            self._contract = SamplingContract(
                args.sampling_defaults, args.sampling_conflict == "reject", self.metrics.violated
            )
        self._allow = AllowList(flat(args.forward_headers))
        self._id_headers = [name.encode() for name in flat(args.request_id_headers)]
        self._id_headers_set = frozenset(self._id_headers)
        self._id_prefix = f"req-{os.urandom(6).hex()}-"
        self._ids = itertools.count(1)
        self._hash_header = args.hash_header.encode()

    # Requests.

    def connection(self) -> ClientConnection:
        """The protocol of a new client."""
        return ClientConnection(self.handle, self.connections, self.args.max_payload_size)

    def handle(self, client: ClientConnection, request: ClientRequest) -> Handling:
        """Begin to answer a request."""
        local = self.local.get(request.path)
        if local is None and self.local_below:
            for below, handler in self.local_below.items():
                if request.path.startswith(below):
                    local = handler
        if local is not None:
            return local(client, request)
        exchange = Exchange(self, client, request)
        exchange.start()
        return exchange

    def plan(self, request: ClientRequest) -> Plan:
        """Read a request.

        Raises:
            Refusal: 400; or 503 while the router ends.
        """
        if self.stopping:
            raise Refusal(503, "router_shutting_down", "the router is shutting down")
        return plan_of(
            request,
            pd=self.pd,
            contract=self._contract,
            reads_prompt=self._reads_prompt,
            key=request.known.get(self._hash_header, b""),
        )

    def _reads_prompt(self, model: str) -> bool:
        if self.pd:
            return self.selector.reads_prompt(Role.PREFILL, model) or self.selector.reads_prompt(
                Role.DECODE, model
            )
        return self.selector.reads_prompt(Role.PLAIN, model)

    def choose_prefill(self, plan: Plan) -> Prefill:
        """A prefill worker for a request.

        Raises:
            Refusal: there is none.
        """
        worker, permit = self.selector.choose(
            Role.PREFILL, plan.model, plan.ask, length=plan.length
        )
        return Prefill(worker, permit, self.legs, self.metrics.prefilled)

    def request_id(self, request: ClientRequest) -> str:
        """The client's id of a request, or a new one."""
        if self._id_headers_set.isdisjoint(request.known):
            return f"{self._id_prefix}{next(self._ids)}"
        for name in self._id_headers:
            value = request.known.get(name)
            if value:
                return value.decode("latin-1")
        return f"{self._id_prefix}{next(self._ids)}"

    def upstream_headers(self, request: ClientRequest, plan: Plan, request_id: str) -> bytes:
        """The header lines of a request as a worker gets it, without host and content-length."""
        if request.path in GENERATION and request.method == b"POST":
            lines = _STREAM_LINES if plan.stream else _JSON_LINES
            lines += self._allow.passing(request.headers)
        else:
            lines = self._allow.passing(request.headers, whole=True)
        if self._bearer and b"authorization" not in request.known:
            lines += b"authorization: " + self._bearer + b"\r\n"
        if b"x-request-id" not in request.known:
            lines += b"x-request-id: " + request_id.encode("latin-1") + b"\r\n"
        return lines

    def _own_authorization(self) -> bytes:
        return b"authorization: " + self._bearer + b"\r\n" if self._bearer else b""

    @property
    def bearer(self) -> bytes | None:
        """The authorization of requests that bring none."""
        return self._bearer

    def record(self, record: Record) -> None:
        """The end of a request: the one value that both the log and the metrics are made from."""
        self.metrics.observe(record)
        self.access_log.write(record)

    def write_refusal(
        self, client: ClientConnection, request: ClientRequest, refusal: Refusal, request_id: str
    ) -> None:
        """Answer in a worker's stead."""
        extra = b"x-router-error-code: %b\r\nx-request-id: %b\r\n" % (
            refusal.code.encode(),
            request_id.encode("latin-1"),
        )
        if refusal.status in (429, 503):
            extra += b"retry-after: 1\r\n"
        if self.stopping:
            request.keep_alive = False
        client.write(own_answer(refusal.status, refusal.body(), _JSON, request, extra))

    # Workers.

    def make_upstream(self, spec: WorkerSpec) -> Upstream:
        """The transport to a worker."""
        return self._transport(spec, http2=spec.http2 is True)

    def speak_http2(self, worker: Worker) -> None:
        """A worker says that it understands HTTP/2; unless somebody said otherwise, use it."""
        if worker.spec.http2 is None and isinstance(worker.upstream, H1Upstream):
            try:
                upstream = self._transport(worker.spec, http2=True)
            except ArgumentError as error:
                log.warning("%s; HTTP/1.1 is used", error)
                return
            worker.upstream.close_idle()
            worker.upstream = upstream

    def _transport(self, spec: WorkerSpec, *, http2: bool) -> Upstream:
        url = urlsplit(spec.url)
        where = (url.hostname or "", url.port or 80, url.path, self.args.connect_timeout_secs)
        if not http2:
            return H1Upstream(*where)
        try:
            from keel.router.upstream.h2c import H2Upstream
        except ImportError:
            raise ArgumentError(
                f"{spec.url} is to be spoken to in HTTP/2, and h2 is not installed",
                "install h2, or the http2 extra",
            ) from None
        return H2Upstream(*where)

    def suspect(self, worker: Worker | None) -> None:
        """A worker could not be reached: look at it now."""
        if worker is not None:
            self.health.check_soon(worker)

    # The janitor's part.

    def sweep(self, now: float) -> None:
        """End requests that took too long, close what is idle for too long."""
        for exchange in tuple(self.in_flight):
            exchange.check(now)
        for leg in tuple(self.legs):
            leg.check(now, min(self.request_timeout, self.stale_after))
        quiet_since, reading_since = (
            now - self.args.client_idle_timeout_secs,
            now - self.stale_after,
        )
        for client in tuple(self.connections):
            client.check(quiet_since, reading_since)
        for worker in self.table:
            worker.upstream.sweep()

    def snapshot(self) -> Snapshot:
        """All metrics of this process."""
        snapshot = self.metrics.snapshot()
        snapshot.in_flight = len(self.in_flight)
        snapshot.connections = len(self.connections)
        snapshot.waiting = self.admission.waiting if self.admission is not None else 0
        snapshot.workers = {
            worker.url: (
                worker.in_flight,
                int(worker.breaker.state),
                int(worker.healthy is not False),
                int(worker.draining),
            )
            for worker in self.table
        }
        return snapshot


_JSON = "application/json"
_JSON_LINES = b"content-type: application/json\r\n"
_STREAM_LINES = _JSON_LINES + b"accept: text/event-stream\r\n"


@dataclass(frozen=True)
class Backoff:
    """The pauses between rounds of attempts; `jitter` is the share that each may be off by."""

    first: float
    longest: float
    growth: float
    jitter: float

    def after(self, attempts: int) -> float:
        """Seconds to wait after so many attempts."""
        wait = min(self.longest, self.first * self.growth ** (attempts - 1))
        return wait * (1 + self.jitter * (2 * random.random() - 1))


def limits_of(args: RouterArgs) -> Limits | None:
    """The limits that the flags set; a process keeps its part of the rate."""
    requests = args.max_concurrent_requests if args.max_concurrent_requests > 0 else None
    rate = args.rate_limit_tokens_per_second
    if requests is None and rate is None:
        return None
    part = None if rate is None else rate / args.workers
    burst = max(1.0, (requests or rate or 1) / args.workers)
    return Limits(requests, part, burst, args.queue_size, args.queue_timeout_secs)


def breaker_config(args: RouterArgs) -> BreakerConfig:
    """The breaker part of the flags."""
    return BreakerConfig(
        args.cb_failure_threshold,
        args.cb_success_threshold,
        args.cb_timeout_duration_secs,
        args.cb_window_duration_secs,
        not args.disable_circuit_breaker,
    )


def health_config(args: RouterArgs) -> HealthConfig:
    """The health part of the flags."""
    return HealthConfig(
        args.health_check_endpoint,
        args.health_check_interval_secs,
        args.health_check_timeout_secs,
        args.health_failure_threshold,
        args.health_success_threshold,
        not args.disable_health_check,
    )


def policy_choice(args: RouterArgs) -> PolicyChoice:
    """The policy part of the flags."""
    by_role = {Role.PREFILL: args.prefill_policy, Role.DECODE: args.decode_policy}
    return PolicyChoice(
        args.policy,
        {role: name for role, name in by_role.items() if name is not None},
        args.model_policies,
    )


def policy_config(args: RouterArgs) -> PolicyConfig:
    """The part of the flags that tunes policies."""
    return PolicyConfig(
        args.cache_threshold,
        args.balance_abs_threshold,
        args.balance_rel_threshold,
        args.max_tree_size,
    )
