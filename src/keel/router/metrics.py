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
        waiting: requests that the router's own limits hold back; they are in flight too.
    """

    requests: dict[str, int] = {}
    latency: dict[str, list[float]] = {}
    first_byte: dict[str, list[float]] = {}
    counters: dict[str, int] = {}
    workers: dict[str, tuple[int, int, int, int]] = {}
    in_flight: int = 0
    connections: int = 0
    waiting: int = 0


_SEP = "\x1f"


def _empty_row() -> list[float]:
    return [0.0] * (len(_BUCKETS) + 2)


class _Series:
    """What counts requests of one worker, model and outcome; the rows are shared with others."""

    __slots__ = ("count", "first_byte", "latency")

    def __init__(self, latency: list[float], first_byte: list[float]) -> None:
        self.count, self.latency, self.first_byte = 0, latency, first_byte


class Metrics:
    """What one process counted."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, str, bool, str], _Series] = {}
        self._latency: dict[tuple[str, str], list[float]] = {}
        self._first_byte: dict[str, list[float]] = {}
        self._counters: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._models: set[str] = set()

    def observe(self, record: Record) -> None:
        """Count a request."""
        key = (record.worker, record.model, record.stream, record.outcome)
        series = self._series.get(key) or self._series_of(*key)
        series.count += 1
        latency, first = record.latency, record.first_byte
        row = series.latency
        row[bisect_left(_BUCKETS, latency)] += 1
        row[-1] += latency
        if first >= 0:
            row = series.first_byte
            row[bisect_left(_BUCKETS, first)] += 1
            row[-1] += first

    def _series_of(self, worker: str, model: str, stream: bool, outcome: str) -> _Series:
        if model not in self._models:
            # Clients may write anything; every new word would be a time series for ever.
            if len(self._models) < _MODELS:
                self._models.add(model)
            else:
                model = "other"
        key = (worker, model, stream, outcome)
        series = self._series.get(key)
        if series is None:
            latency = self._latency.setdefault((model, outcome), _empty_row())
            first_byte = self._first_byte.setdefault(model, _empty_row())
            series = self._series[key] = _Series(latency, first_byte)
        return series

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
                _SEP.join((w, m, "true" if s else "false", o)): series.count
                for (w, m, s, o), series in self._series.items()
            },
            latency={_SEP.join(key): list(row) for key, row in self._latency.items()},
            first_byte={key: list(row) for key, row in self._first_byte.items() if any(row)},
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
        total.waiting += one.waiting
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
            "keel_router_waiting",
            "Requests that the router's own limits hold back.",
            value=snapshot.waiting,
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
