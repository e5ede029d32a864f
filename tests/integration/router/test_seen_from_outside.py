"""Log, metrics, models, and the paths that tell of the router."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from keel.router.worker import WorkerSpec
from support.routing import (
    Client,
    ask,
    fixed,
    hang,
    normal,
    raw,
    routing,
    stall,
    until,
    workers,
)


async def metrics_of(running: Any) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    text = (await ask(running.port, path="/metrics", method="GET")).body.decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


class Log:
    """The access log of a router, as lines of fields."""

    def __init__(self) -> None:
        self.read_end, self.descriptor = os.pipe()
        os.set_blocking(self.read_end, False)
        self._text = ""

    def lines(self, running: Any) -> list[dict[str, str]]:
        running.router.access_log.flush()
        try:
            while data := os.read(self.read_end, 65536):
                self._text += data.decode()
        except BlockingIOError:
            pass
        found = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|\S*)')
        return [
            {name: value.strip('"') for name, value in found.findall(line)}
            for line in self._text.splitlines()
        ]


async def test_every_request_is_one_line_and_one_count_that_agree() -> None:
    log = Log()
    behaviours: dict[str, Any] = {
        "success": normal,
        "client_error": fixed(404, b"{}"),
        "backpressure": fixed(429, b"{}"),
        "server_error": fixed(500, b"{}"),
        "unreachable": raw(then_reset=True),
        "truncated": raw(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n"),
        "error_event": fixed(200, b'data: {"error":1}\n\n', stream=True),
        "cancelled": hang,
        "timeout": stall,
    }

    async def by_user(worker: Any, seen: Any, reader: Any, writer: Any) -> None:
        await behaviours[seen.json["user"]](worker, seen, reader, writer)

    flags = "--disable-retries --stream-idle-timeout-secs 0.2 --cb-failure-threshold 100"
    async with (
        workers(by_user) as [worker],
        routing(worker, flags=flags, log=log.descriptor) as running,
    ):
        for user in behaviours:
            client = await Client.open(running.port)
            body = {"model": "tiny", "user": user, "stream": True}
            client.send(body=body, headers={"x-request-id": f"id-{user}"})
            if user == "cancelled":
                await until(lambda: worker.in_hand)
                client.leave()
            else:
                await client.reply()
            await until(lambda: not running.router.in_flight)
        await ask(running.port, b"no json", headers={"x-request-id": "id-rejected"})
        lines = {line["request_id"].removeprefix("id-"): line for line in log.lines(running)}
        assert set(lines) == {*behaviours, "rejected"}
        counts = await metrics_of(running)
        for user, line in lines.items():
            assert line["outcome"] == user
            labels = {
                "worker": line["worker"],
                "model": line["model"],
                "stream": line["stream"],
                "outcome": line["outcome"],
            }
            name = "keel_router_worker_requests_total"
            assert counts[name, frozenset(labels.items())] == 1.0
        total = sum(n for (name, _), n in counts.items() if name == name_of_total)
        assert total == len(lines)
        rids = {seen.json["user"]: seen.json["rid"] for seen in worker.seen}
        for user, rid in rids.items():
            assert lines[user]["engine_rid"] == rid
            assert lines[user]["worker"] == worker.url
            assert lines[user]["stream"] == "true"
            assert float(lines[user]["latency_ms"]) > 0
        assert lines["rejected"]["engine_rid"] == ""
        assert lines["cancelled"]["status"] == "499"
        assert lines["unreachable"]["status"] == "502"  # the worker is still named


name_of_total = "keel_router_worker_requests_total"


async def test_a_client_cannot_write_lines_or_fields_into_the_log() -> None:
    log = Log()
    async with workers(normal) as [worker], routing(worker, log=log.descriptor) as running:
        await ask(
            running.port,
            {"model": 'a" outcome=success\nmsg=request worker=evil'},
            headers={"x-request-id": 'x" outcome=expired worker="evil'},
        )
        text = log.lines(running)
        assert len(text) == 1
        assert text[0]["outcome"] == "success"
        assert text[0]["worker"] == worker.url


async def test_models_that_clients_make_up_do_not_fill_the_metrics() -> None:
    async with workers(normal) as [worker], routing(worker) as running:
        client = await Client.open(running.port)
        for number in range(300):
            client.send(body={"model": f"model-{number}"})
            await client.reply()
        models = {
            dict(labels)["model"]
            for (name, labels) in await metrics_of(running)
            if name == name_of_total
        }
        assert len(models) <= 201
        assert "other" in models


async def test_load_and_connections_are_gauges_that_return_to_zero() -> None:
    async with workers(hang) as [worker], routing(worker) as running:
        clients = [await Client.open(running.port) for _ in range(3)]
        for client in clients:
            client.send(body={"model": "tiny"})
        await until(lambda: worker.in_hand == 3)
        counts = await metrics_of(running)
        at = frozenset({("worker", worker.url)})
        assert counts["keel_router_worker_in_flight", at] == 3
        assert counts["keel_router_in_flight", frozenset()] == 3
        for client in clients:
            client.leave()
        await until(lambda: not running.router.in_flight)
        counts = await metrics_of(running)
        assert counts["keel_router_worker_in_flight", at] == 0
        assert counts["keel_router_aborts_total", frozenset({("result", "sent")})] == 3
        assert counts["keel_router_worker_breaker_state", at] == 0


async def test_models_are_those_of_all_workers_and_a_worker_that_hangs_is_not_waited_for() -> None:
    async with (
        workers(normal, models=("a", "b")) as [one],
        workers(normal, models=("b", "c")) as [two],
        workers(normal, models=("z",)) as [hanging],
    ):
        specs = [WorkerSpec(one.url), WorkerSpec(two.url), WorkerSpec(hanging.url)]
        async with routing(one, two, hanging, specs=specs) as running:
            hanging.hang_models = True
            answer = await ask(running.port, path="/v1/models", method="GET")
            assert answer.json["object"] == "list"
            assert [model["id"] for model in answer.json["data"]] == ["a", "b", "c"]
            await two.kill()
            answer = await ask(running.port, path="/v1/models", method="GET")
            assert [model["id"] for model in answer.json["data"]] == ["a", "b"]


async def test_ready_means_that_somebody_can_serve() -> None:
    async with workers(normal) as [worker], routing(worker) as running:
        assert (await ask(running.port, path="/ready", method="GET")).status == 200
        running.worker(worker).healthy = False
        running.router.table.changed()
        assert (await ask(running.port, path="/ready", method="GET")).status == 503
        assert (await ask(running.port, path="/health", method="GET")).status == 200
        answer = await ask(running.port, {"model": "tiny"})
        assert answer.error_code == "no_available_workers"


@pytest.mark.parametrize("path", ["/health", "/metrics", "/workers", "/v1/models"])
async def test_own_paths_answer_head_and_kept_alive_connections(path: str) -> None:
    async with workers(normal) as [worker], routing(worker) as running:
        client = await Client.open(running.port)
        for method in ("GET", "GET") if path == "/workers" else ("HEAD", "GET"):
            client.send(path, method=method)
            assert (await client.reply(method)).status == 200
