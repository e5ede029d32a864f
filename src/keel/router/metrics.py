"""Prometheus metrics: plain counters while requests run, text when somebody asks."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from keel.router.outcome import Record

_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)
_MODELS = 200


class Snapshot(msgspec.Struct):
    """The metrics of one process, or the sum of several.

    Args:
        requests: by (worker, model, stream, outcome).
        latency, first_byte: by (model, outcome) and (model): count per bucket, then the sum.
        counters: everything else that counts, by (name, label value).
        workers: gauges by worker URL: in flight, breaker state, healthy, draining.
        in_flight: requests in hand, those that wait for a worker too.
        connections: of clients.
    """

    requests: dict[str, int] = {}
    latency: dict[str, list[float]] = {}
    first_byte: dict[str, list[float]] = {}
    counters: dict[str, int] = {}
    workers: dict[str, tuple[int, int, int, int]] = {}
    in_flight: int = 0
    connections: int = 0


_SEP = "\x1f"


class Metrics:
    """What one process counted."""

    def __init__(self) -> None:
        self._requests: defaultdict[tuple[str, str, bool, str], int] = defaultdict(int)
        self._latency: dict[tuple[str, str], list[float]] = {}
        self._first_byte: dict[str, list[float]] = {}
        self._counters: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._models: set[str] = set()

    def observe(self, record: Record) -> None:
        """Count a request."""
        model = record.model
        if model not in self._models:
            # Clients may write anything; every new word would be a time series for ever.
            if len(self._models) < _MODELS:
                self._models.add(model)
            else:
                model = "other"
        outcome = record.outcome.value
        self._requests[record.worker, model, record.stream, outcome] += 1
        key = (model, outcome)
        row = self._latency.get(key)
        if row is None:
            row = self._latency[key] = [0.0] * (len(_BUCKETS) + 2)
        row[bisect_left(_BUCKETS, record.latency)] += 1
        row[-1] += record.latency
        if record.first_byte >= 0:
            row = self._first_byte.get(model)
            if row is None:
                row = self._first_byte[model] = [0.0] * (len(_BUCKETS) + 2)
            row[bisect_left(_BUCKETS, record.first_byte)] += 1
            row[-1] += record.first_byte

    def retried(self) -> None:
        """An attempt failed and another one follows."""
        self._counters["retries", ""] += 1

    def aborted(self, what: str) -> None:
        """An abort was `sent`, or `failed`."""
        self._counters["aborts", what] += 1

    def violated(self, field: str) -> None:
        """A request broke the sampling contract."""
        self._counters["sampling_violations", field] += 1

    def rendered(self, what: str) -> None:
        """Routing tokenisation: `forwarded`, `routing_only`, `bypassed` or `failed`."""
        self._counters["renders", what] += 1

    def prefilled(self, worker: str, what: str) -> None:
        """A prefill half ended in `success` or `failure`."""
        self._counters["prefills", f"{worker}{_SEP}{what}"] += 1

    def snapshot(self) -> Snapshot:
        """All that was counted; the gauges are for the caller to fill in."""
        return Snapshot(
            requests={
                _SEP.join((w, m, "true" if s else "false", o)): n
                for (w, m, s, o), n in self._requests.items()
            },
            latency={_SEP.join(key): list(row) for key, row in self._latency.items()},
            first_byte={key: list(row) for key, row in self._first_byte.items()},
            counters={_SEP.join(key): n for key, n in self._counters.items()},
        )


def summed(snapshots: Iterable[Snapshot]) -> Snapshot:
    """The metrics of several processes as those of one.

    Loads add up; a worker's breaker is as bad as in the process that thinks worst of it.
    """
    total = Snapshot()
    for one in snapshots:
        for counts, more in ((total.requests, one.requests), (total.counters, one.counters)):
            for key, count in more.items():
                counts[key] = counts.get(key, 0) + count
        for rows, others in ((total.latency, one.latency), (total.first_byte, one.first_byte)):
            for key, row in others.items():
                have = rows.get(key)
                rows[key] = [a + b for a, b in zip(have, row, strict=True)] if have else list(row)
        for url, (load, breaker, healthy, draining) in one.workers.items():
            before = total.workers.get(url, (0, 0, 1, 0))
            total.workers[url] = (
                before[0] + load,
                max(before[1], breaker, key=(0, 2, 1).index),
                min(before[2], healthy),
                max(before[3], draining),
            )
        total.in_flight += one.in_flight
        total.connections += one.connections
    return total


_COUNTERS = {
    "retries": ("Attempts that were followed by another.", ()),
    "aborts": ("Aborts sent to engines, and those of them that failed.", ("result",)),
    "sampling_violations": ("Requests refused by the sampling contract.", ("field",)),
    "renders": ("What became of prompts for routing tokenisation.", ("result",)),
    "prefills": ("Prefill halves of requests.", ("worker", "result")),
}
_GAUGES = (
    ("worker_in_flight", "Requests that a worker has in hand."),
    ("worker_breaker_state", "0 closed, 1 open, 2 half open."),
    ("worker_healthy", "1 unless its health checks fail."),
    ("worker_draining", "1 while it gets no new requests."),
)


class _Collector:
    """A snapshot as metric families."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        snapshot = self._snapshot
        requests = CounterMetricFamily(
            "keel_router_worker_requests",
            "Requests by how they ended; one for each line of the access log.",
            labels=("worker", "model", "stream", "outcome"),
        )
        for key, count in snapshot.requests.items():
            requests.add_metric(key.split(_SEP), count)
        yield requests
        yield from self._histograms()
        for name, (text, labels) in _COUNTERS.items():
            family = CounterMetricFamily(f"keel_router_{name}", text, labels=labels)
            for key, count in snapshot.counters.items():
                kind, _, values = key.partition(_SEP)
                if kind == name:
                    family.add_metric(values.split(_SEP) if labels else (), count)
            yield family
        for at, (name, text) in enumerate(_GAUGES):
            gauge = GaugeMetricFamily(f"keel_router_{name}", text, labels=("worker",))
            for url, gauges in snapshot.workers.items():
                gauge.add_metric((url,), gauges[at])
            yield gauge
        yield GaugeMetricFamily(
            "keel_router_in_flight", "Requests in hand.", value=snapshot.in_flight
        )
        yield GaugeMetricFamily(
            "keel_router_client_connections", "Open ones.", value=snapshot.connections
        )

    def _histograms(self) -> Iterator[Metric]:
        latency = HistogramMetricFamily(
            "keel_router_request_seconds",
            "From the request's last byte to the answer's last.",
            labels=("model", "outcome"),
        )
        for key, row in self._snapshot.latency.items():
            latency.add_metric(key.split(_SEP), _cumulated(row), row[-1])
        yield latency
        first = HistogramMetricFamily(
            "keel_router_first_byte_seconds",
            "From the request's last byte to the answer's first.",
            labels=("model",),
        )
        for key, row in self._snapshot.first_byte.items():
            first.add_metric((key,), _cumulated(row), row[-1])
        yield first


def _cumulated(row: list[float]) -> list[tuple[str, float]]:
    total, found = 0.0, []
    for limit, count in zip((*map(str, _BUCKETS), "+Inf"), row[:-1], strict=True):
        total += count
        found.append((limit, total))
    return found


def render(snapshot: Snapshot) -> bytes:
    """In Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(snapshot))
    return generate_latest(registry)
