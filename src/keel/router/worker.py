"""A worker as the router knows it, and the table of all of them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from keel.args.router_values import worker_url
from keel.router.breaker import Breaker, BreakerConfig
from keel.router.load import LoadBoard

if TYPE_CHECKING:
    from keel.router.upstream.base import Upstream


class Role(StrEnum):
    """What a worker does of a request."""

    __hash__ = str.__hash__  # as for Outcome

    PLAIN = "plain"
    PREFILL = "prefill"
    DECODE = "decode"


class WorkerSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What somebody says of a worker.

    Args:
        url: `http://host:port[/base]`.
        models: that it serves; empty: ask it.
        bootstrap_port: of a prefill worker.
        bucket: the most tokens of a request that it is meant for; None: any.
        http2: spoken to in HTTP/2 without TLS; None: if its /server_info says so.
    """

    url: str
    role: Role = Role.PLAIN
    models: tuple[str, ...] = ()
    bootstrap_port: int | None = None
    bucket: float | None = None
    http2: bool | None = None

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "url", worker_url(self.url))


class Worker:
    """A worker: what was said of it, what was seen of it, and what it has in hand.

    Args:
        slot: its row on the load board; nobody else's while it is there.
    """

    __slots__ = (
        "_board",
        "breaker",
        "check_failures",
        "check_successes",
        "draining",
        "healthy",
        "host",
        "learned_models",
        "removed",
        "slot",
        "spec",
        "upstream",
        "url",
        "warm_at",
        "warm_since",
    )

    def __init__(
        self, spec: WorkerSpec, slot: int, board: LoadBoard, breaker: Breaker, upstream: Upstream
    ) -> None:
        self.spec, self.slot, self.url = spec, slot, spec.url
        self.host = spec.url.removeprefix("http://").partition("/")[0]
        self._board = board
        self.breaker, self.upstream = breaker, upstream
        self.healthy: bool | None = None  # None: not checked yet; such a worker may be tried
        self.draining = self.removed = False
        self.check_failures = self.check_successes = 0
        self.learned_models: tuple[str, ...] = ()
        self.warm_since = self.warm_at = 0.0  # slow start lasts from one to the other
        board.clear(slot)

    @property
    def models(self) -> tuple[str, ...]:
        """Served models; empty where unknown."""
        return self.spec.models or self.learned_models

    @property
    def bootstrap_host(self) -> str:
        """The name that a decode worker reaches a prefill worker's bootstrap server by."""
        return self.host.rpartition(":")[0].strip("[]")

    @property
    def usable(self) -> bool:
        """Whether it may be given requests, its breaker aside."""
        return self.healthy is not False and not self.draining and not self.removed

    def begin(self, tokens: int) -> None:
        """A request begins on it."""
        self._board.add(self.slot, 1, tokens)

    def end(self, tokens: int) -> None:
        """It ends; called once for each `begin`."""
        if not self.removed:
            self._board.add(self.slot, -1, -tokens)

    @property
    def in_flight(self) -> int:
        """Requests of this process that it has in hand."""
        return self._board.own_requests(self.slot)

    @property
    def load(self) -> int:
        """Requests of all router processes that it has in hand."""
        return self._board.requests(self.slot)

    @property
    def token_load(self) -> int:
        """Prompt tokens of these, estimated where nobody counted."""
        return self._board.tokens(self.slot)


class WorkerTable:
    """All workers by URL. `version` grows with each change of who may be given requests.

    Args:
        make_upstream: the transport to a worker.
        slow_start: seconds over which a worker that joins or recovers gets its share.
    """

    def __init__(
        self,
        board: LoadBoard,
        breakers: BreakerConfig,
        make_upstream: Callable[[WorkerSpec], Upstream],
        slow_start: float = 0.0,
    ) -> None:
        self._board, self._breakers = board, breakers
        self._make_upstream, self._slow_start = make_upstream, slow_start
        self._workers: dict[str, Worker] = {}
        self.version = 0
        self.started = False  # workers that are there from the start are not warmed up
        self.warming = 0.0  # the time at which the last worker will be warm
        self.on_join: list[Callable[[Worker], Any]] = []
        self.on_leave: list[Callable[[Worker], Any]] = []

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._workers.values())

    def __len__(self) -> int:
        return len(self._workers)

    def get(self, url: str) -> Worker | None:
        """The worker of a URL."""
        return self._workers.get(url)

    def changed(self) -> None:
        """Somebody's usability changed."""
        self.version += 1

    def add(self, spec: WorkerSpec, slot: int) -> Worker:
        """Take a worker in, or change what is said of one that is there."""
        worker = self._workers.get(spec.url)
        if worker is not None:
            worker.spec, worker.draining = spec, False
            self.changed()
            return worker
        breaker = Breaker(self._breakers, self.changed)
        worker = Worker(spec, slot, self._board, breaker, self._make_upstream(spec))
        self._workers[spec.url] = worker
        if self.started:
            self.warm_up(worker)
        self.changed()
        for tell in self.on_join:
            tell(worker)
        return worker

    def drain(self, url: str) -> None:
        """Give a worker no further requests."""
        if worker := self._workers.get(url):
            worker.draining = True
            self.changed()

    def remove(self, url: str) -> None:
        """Forget a worker; what it has in hand ends as it ends."""
        worker = self._workers.pop(url, None)
        if worker is None:
            return
        worker.removed = True
        self._board.clear(worker.slot)
        worker.upstream.close_idle()
        self.changed()
        for tell in self.on_leave:
            tell(worker)

    def warm_up(self, worker: Worker) -> None:
        """Let a worker's share of requests grow from now on."""
        if self._slow_start > 0:
            worker.warm_since = time.monotonic()
            worker.warm_at = self.warming = worker.warm_since + self._slow_start

    def models(self) -> dict[str, list[Worker]]:
        """Model to the workers that serve it, as far as known."""
        found: dict[str, list[Worker]] = {}
        for worker in self:
            for model in worker.models:
                found.setdefault(model, []).append(worker)
        return found


class Membership:
    """The owner of the worker list: gives each worker a slot that nobody else has.

    In one process it sits beside the table; with several it sits in the supervisor.
    """

    def __init__(self, slots: int) -> None:
        self._free = list(range(slots - 1, -1, -1))
        self.slots: dict[str, int] = {}
        self.specs: dict[str, WorkerSpec] = {}
        self.draining: dict[str, float] = {}  # since when

    def add(self, spec: WorkerSpec) -> int:
        """The slot of a worker that joins, or is there.

        Raises:
            ValueError: there are too many workers.
        """
        if spec.url not in self.slots:
            if not self._free:
                raise ValueError(f"there are {len(self.slots)} workers; no room for {spec.url}")
            self.slots[spec.url] = self._free.pop()
        self.specs[spec.url] = spec
        self.draining.pop(spec.url, None)
        return self.slots[spec.url]

    def drain(self, url: str) -> None:
        """A worker is to leave."""
        self.draining.setdefault(url, time.monotonic())

    def remove(self, url: str) -> None:
        """A worker left."""
        slot = self.slots.pop(url, None)
        if slot is not None:
            self._free.insert(0, slot)  # the longest unused is taken last
        self.specs.pop(url, None)
        self.draining.pop(url, None)


def specs_of(
    plain: Sequence[str],
    prefill: Iterable[tuple[str, int | None]],
    decode: Sequence[str],
    buckets: dict[str, float],
    http2: Sequence[str],
) -> list[WorkerSpec]:
    """The workers of a command line."""
    return [
        WorkerSpec(url, role, (), port, buckets.get(url), True if url in http2 else None)
        for url, role, port in itertools.chain(
            ((url, Role.PLAIN, None) for url in plain),
            ((url, Role.PREFILL, port) for url, port in prefill),
            ((url, Role.DECODE, None) for url in decode),
        )
    ]
