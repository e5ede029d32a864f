"""Metrics of several processes are those of one; the log says what they count."""

from __future__ import annotations

import asyncio
import os

import pytest
from prometheus_client.parser import text_string_to_metric_families

from keel.router.access_log import AccessLog, quoted
from keel.router.metrics import Metrics, Snapshot, render, summed
from keel.router.outcome import Outcome, Record, of_status


def record(model: str = "tiny", outcome: Outcome = Outcome.SUCCESS, **fields: object) -> Record:
    values: dict[str, object] = {
        "request_id": "r",
        "engine_rid": "",
        "worker": "http://a:1",
        "model": model,
        "route": "/v1/chat/completions",
        "stream": False,
        "status": 200,
        "outcome": outcome,
        "first_byte": 0.02,
        "latency": 0.2,
        "attempts": 1,
        "error": "",
    }
    return Record(**values | fields)  # type: ignore[arg-type]


def samples(snapshot: Snapshot) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(render(snapshot).decode())
        for sample in family.samples
    }


def test_the_sum_over_processes_is_what_one_would_have_counted() -> None:
    one, two, all_ = Metrics(), Metrics(), Metrics()
    for number in range(20):
        outcome = list(Outcome)[number % len(Outcome)]
        r = record(f"m{number % 3}", outcome, latency=0.01 * number, first_byte=number % 5 - 1.0)
        (one if number % 2 else two).observe(r)
        all_.observe(r)
    for metrics in (one, all_):
        metrics.retried()
        metrics.aborted("sent")
        metrics.prefilled("http://a:1", "failure")
    assert samples(summed((one.snapshot(), two.snapshot()))) == samples(all_.snapshot())


def test_a_worker_is_as_ill_as_the_process_that_thinks_worst_of_it() -> None:
    closed, opened, half = 0, 1, 2
    total = summed(
        [
            Snapshot(workers={"w": (1, closed, 1, 0)}, in_flight=2),
            Snapshot(workers={"w": (2, half, 1, 0)}, in_flight=3),
        ]
    )
    assert total.workers["w"] == (3, half, 1, 0)
    assert total.in_flight == 5
    total = summed([total, Snapshot(workers={"w": (0, opened, 0, 1)})])
    assert total.workers["w"] == (3, opened, 0, 1)


def test_histograms_are_cumulative_and_bounded_by_their_buckets() -> None:
    metrics = Metrics()
    for latency in (0.0, 0.001, 0.0011, 700.0):
        metrics.observe(record(latency=latency))
    found = samples(metrics.snapshot())
    labels = {("model", "tiny"), ("outcome", "success")}

    def bucket(limit: str) -> float:
        name = "keel_router_request_seconds_bucket"
        return found[name, frozenset(labels | {("le", limit)})]

    assert (bucket("0.001"), bucket("0.0025"), bucket("600.0"), bucket("+Inf")) == (2, 3, 3, 4)
    name = "keel_router_request_seconds_sum"
    assert found[name, frozenset(labels)] == pytest.approx(700.0021)


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (200, Outcome.SUCCESS),
        (304, Outcome.SUCCESS),
        (400, Outcome.CLIENT_ERROR),
        (429, Outcome.BACKPRESSURE),
        (503, Outcome.BACKPRESSURE),
        (500, Outcome.SERVER_ERROR),
        (502, Outcome.SERVER_ERROR),
    ],
)
def test_complete_answers_are_told_apart_by_status(status: int, outcome: Outcome) -> None:
    assert of_status(status) is outcome


def test_a_log_line_has_all_that_is_known_of_a_request() -> None:
    async def write() -> bytes:
        read_end, write_end = os.pipe()
        log = AccessLog(write_end)
        log.write(record(engine_rid="a" * 32, request_id='x y"\n', error="no: way"))
        log.flush()
        os.close(write_end)
        with os.fdopen(read_end, "rb") as reader:
            return reader.read()

    line = asyncio.run(write()).decode()
    assert line.count("\n") == 1
    for part in (
        r'request_id="x y\"\n"',
        f"engine_rid={'a' * 32}",
        "worker=http://a:1",
        "model=tiny",
        "stream=false",
        "outcome=success",
        "status=200",
        "latency_ms=200.00",
        'error="no: way"',
    ):
        assert part in line


def test_whatever_is_no_plain_word_is_quoted() -> None:
    assert quoted("org/model-1.5:lora") == "org/model-1.5:lora"
    assert quoted("") == '""'
    assert quoted("a=b") == '"a=b"'
    assert quoted("a b") == '"a b"'
    assert quoted("a\nb") == r'"a\nb"'


def test_a_log_whose_reader_is_gone_stops_nothing() -> None:
    async def write() -> None:
        read_end, write_end = os.pipe()
        os.close(read_end)
        log = AccessLog(write_end)
        log.write(record())
        log.flush()
        os.close(write_end)

    asyncio.run(write())
