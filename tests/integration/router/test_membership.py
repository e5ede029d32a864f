"""Workers join, are checked, drain and leave: by hand, by file, by DNS."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from keel.args.router import parse
from keel.router.discovery import sources
from keel.router.discovery.docker import spec_of
from keel.router.discovery.sources import Discovery
from keel.router.worker import Role, WorkerSpec
from support.routing import (
    ANSWER,
    Client,
    ask,
    hang,
    normal,
    reply,
    routing,
    soon,
    until,
    workers,
)

CHECKED = "--health-check-interval-secs 0.05 --health-check-timeout-secs 0.2"


def checked(flags: str = "") -> str:
    return f"{CHECKED} {flags}"


@pytest.fixture(autouse=True)
def _with_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The harness turns health checks off; here they are what is looked at."""
    from support import routing as harness

    def parse_with_checks(words: list[str]) -> Any:
        if "--health-check-interval-secs" in words:
            words = [word for word in words if word != "--disable-health-check"]
        return parse(words)

    monkeypatch.setattr(harness, "parse", parse_with_checks)


async def test_a_worker_is_added_used_drained_and_gone() -> None:
    async with workers(normal, normal) as [old, new], routing(old) as running:
        answer = await ask(running.port, {"url": new.url + "/"}, path="/workers")
        assert answer.status == 201
        for _ in range(4):
            await ask(running.port, {"model": "tiny"})
        assert (len(old.seen), len(new.seen)) == (2, 2)
        listed = (await ask(running.port, path="/workers", method="GET")).json["workers"]
        assert [worker["url"] for worker in listed] == [old.url, new.url]
        path = f"/workers/{quote(old.url, safe='')}"
        assert (await ask(running.port, path=path, method="GET")).json["load"] == 0
        assert (await ask(running.port, path=path, method="DELETE")).status == 202
        running.fleet.tick()
        assert running.router.table.get(old.url) is None
        assert (await ask(running.port, {"model": "tiny"})).status == 200
        assert len(old.seen) == 2
        assert (await ask(running.port, path=path, method="DELETE")).status == 404


async def test_a_worker_that_drains_finishes_what_it_has() -> None:
    gate = asyncio.Event()

    async def slow(worker: Any, seen: Any, reader: Any, writer: Any) -> None:
        await gate.wait()
        await reply(writer, 200, ANSWER)

    async with workers(slow, normal) as [leaving, staying], routing(leaving, staying) as running:
        task = asyncio.ensure_future(ask(running.port, {"model": "tiny"}))
        await leaving.event("request")
        path = f"/workers/{quote(leaving.url, safe='')}/drain"
        assert (await ask(running.port, path=path)).json["state"] == "draining"
        running.fleet.tick()
        assert running.router.table.get(leaving.url) is not None
        for _ in range(3):
            await ask(running.port, {"model": "tiny"})
        assert len(staying.seen) == 3
        gate.set()
        assert (await soon(task)).status == 200
        running.fleet.tick()
        assert running.router.table.get(leaving.url) is None
        assert leaving.aborts == []


async def test_a_worker_that_does_not_drain_leaves_after_its_time() -> None:
    flags = "--drain-timeout-secs 0.05"
    async with workers(hang) as [worker], routing(worker, flags=flags) as running:
        client = await Client.open(running.port)
        client.send(body={"model": "tiny"})
        await worker.event("request")
        running.fleet.drain(worker.url)
        running.fleet.tick()
        assert running.router.table.get(worker.url) is not None
        await asyncio.sleep(0.06)
        running.fleet.tick()
        assert running.router.table.get(worker.url) is None
        client.leave()
        await worker.event("abort")  # what it had in hand is still looked after
        assert running.fleet._board.requests(0) == 0


async def test_the_names_of_sglang_work_too() -> None:
    async with workers(normal) as [worker], routing() as running:
        path = f"/add_worker?url={quote(worker.url)}"
        assert (await ask(running.port, path=path)).status == 201
        answer = await ask(running.port, path="/list_workers", method="GET")
        assert [one["url"] for one in answer.json["workers"]] == [worker.url]
        path = f"/remove_worker?url={quote(worker.url)}"
        assert (await ask(running.port, path=path)).status == 202


async def test_changes_need_the_key_and_looking_does_not() -> None:
    flags = "--admin-api-key s3cret"
    async with workers(normal) as [worker], routing(worker, flags=flags) as running:
        body = {"url": "http://127.0.0.1:1"}
        for headers in ({}, {"authorization": "Bearer wrong"}):
            answer = await ask(running.port, body, path="/workers", headers=headers)
            assert answer.status == 401
        headers = {"authorization": "Bearer s3cret"}
        assert (await ask(running.port, body, path="/workers", headers=headers)).status == 201
        assert (await ask(running.port, path="/workers", method="GET")).status == 200


@pytest.mark.parametrize(
    "body", [b"", b"{}", b'{"url":1}', b'{"url":"http://a","odd":1}', b'{"url":"ftp://a"}']
)
async def test_a_worker_that_cannot_be_meant_is_refused(body: bytes) -> None:
    async with routing() as running:
        answer = await ask(running.port, body, path="/workers")
        assert (answer.status, answer.error_code) == (400, "invalid_worker")


async def test_a_worker_that_falls_ill_gets_no_requests_until_it_is_well() -> None:
    async with workers(normal, normal) as [ill, well], routing(ill, well, flags=checked()) as r:
        await until(lambda: r.worker(ill).healthy and r.worker(well).healthy)
        ill.healthy = False
        await until(lambda: r.worker(ill).healthy is False)
        before = len(ill.seen)
        for _ in range(4):
            assert (await ask(r.port, {"model": "tiny"})).status == 200
        assert len(ill.seen) == before
        ill.healthy = True
        await until(lambda: r.worker(ill).healthy)
        for _ in range(4):
            await ask(r.port, {"model": "tiny"})
        assert len(ill.seen) == before + 2


async def test_one_failed_check_takes_nobody_out() -> None:
    flags = checked("--health-failure-threshold 3")
    async with workers(normal) as [worker], routing(worker, flags=flags) as running:
        await until(lambda: running.worker(worker).healthy)
        worker.healthy = False
        await until(lambda: running.worker(worker).check_failures >= 1)
        worker.healthy = True
        await until(lambda: running.worker(worker).check_failures == 0)
        assert running.worker(worker).healthy


async def test_a_worker_that_is_well_again_is_probed_at_once_though_its_breaker_is_open() -> None:
    flags = checked("--cb-failure-threshold 1 --cb-timeout-duration-secs 1000 --disable-retries")
    async with workers(normal) as [worker], routing(worker, flags=flags) as running:
        await until(lambda: running.worker(worker).healthy)
        await worker.kill()
        assert (await ask(running.port, {"model": "tiny"})).status == 502
        await until(lambda: running.worker(worker).healthy is False)
        await worker.start()
        await until(lambda: running.worker(worker).healthy)
        assert (await ask(running.port, {"model": "tiny"})).status == 200


async def test_what_a_worker_serves_is_asked_when_it_comes() -> None:
    async with workers(normal, models=("a",)) as [one], workers(normal, models=("b",)) as [two]:
        specs = [WorkerSpec(one.url), WorkerSpec(two.url)]
        async with routing(one, two, specs=specs) as running:
            for _ in range(3):
                await ask(running.port, {"model": "b"})
            assert (len(one.seen), len(two.seen)) == (0, 3)
            answer = await ask(running.port, {"model": "c"})
            assert (answer.status, answer.error_code) == (404, "model_not_found")


async def test_the_worker_file_is_followed_and_a_mistake_in_it_changes_nothing(
    tmp_path: Path,
) -> None:
    async with workers(normal, normal) as [one, two], routing() as running:
        path = tmp_path / "workers.json"
        path.write_text(json.dumps([one.url, {"url": two.url, "models": ["x"]}]))
        args = parse(["--worker-file", str(path), "--discovery-interval-secs", "0.05"])
        discovery = Discovery(args, running.fleet)
        table = running.router.table

        def urls() -> set[str]:
            return {worker.url for worker in table}

        async with discovery.running():
            assert urls() == {one.url, two.url}
            path.write_text(json.dumps([two.url]))
            await until(lambda: urls() == {two.url})
            path.write_text('["http://')
            await until(lambda: discovery._problems)
            assert urls() == {two.url}
            path.write_text(json.dumps([{"url": "https://no"}]))
            discovery.look_again.set()
            await until(lambda: "https" in discovery._problems.get("worker file", ""))
            assert urls() == {two.url}
            path.write_text(json.dumps([one.url]))
            await until(lambda: urls() == {one.url})


async def test_a_source_leaves_workers_from_elsewhere_alone(tmp_path: Path) -> None:
    async with workers(normal, normal) as [by_flag, by_file], routing(by_flag) as running:
        running.fleet.reconcile("file", [WorkerSpec(by_file.url), WorkerSpec(by_flag.url)])
        assert len(running.router.table) == 2
        running.fleet.reconcile("file", [])
        running.fleet.tick()
        assert [worker.url for worker in running.router.table] == [by_flag.url]


async def test_every_address_of_a_name_is_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    found = await sources.resolve("localhost", 31499)
    assert WorkerSpec("http://127.0.0.1:31499") in found
    with pytest.raises(sources.SourceError):
        await sources.resolve("no-such-host.invalid", 1)


def test_a_container_says_what_worker_it_is() -> None:
    container = {
        "Id": "abc",
        "Labels": {"keel.port": "8000", "keel.role": "prefill", "keel.bootstrap-port": "9000"},
        "NetworkSettings": {"Networks": {"b": {"IPAddress": "10.0.0.2"}, "a": {"IPAddress": ""}}},
    }
    spec = spec_of(container)
    assert spec == WorkerSpec("http://10.0.0.2:8000", Role.PREFILL, bootstrap_port=9000)
    assert spec_of({"Labels": {"keel.role": "cook"}} | container | {"Labels": {}}) is not None
    container["Labels"]["keel.role"] = "cook"  # type: ignore[index]
    assert spec_of(container) is None
    assert spec_of({"Id": "x", "Labels": None, "NetworkSettings": {"Networks": {}}}) is None
