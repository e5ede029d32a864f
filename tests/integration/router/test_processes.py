"""`keel router` as a command: alone and as several processes that share what must be shared."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from support.router_command import ROOT, command
from support.routing import Client, FakeWorker, ask, hang, normal, soon, stall, until, workers


async def total(port: int, name: str) -> float:
    """The sum over a metric's series."""
    text = (await ask(port, path="/metrics", method="GET")).body.decode()
    lines = [line for line in text.splitlines() if line.startswith(name)]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


REQUESTS = "keel_router_worker_requests_total"


async def test_one_process_serves_and_ends_cleanly_on_a_signal() -> None:
    async with workers(normal) as [worker]:
        async with command("--worker-urls", worker.url, "--policy", "round_robin") as running:
            assert (await ask(running.port, {"model": "tiny"})).status == 200
            assert await total(running.port, REQUESTS) == 1
        assert running.process.returncode == 0
        assert "msg=request" in running.text
        assert "Traceback" not in running.text


async def test_a_signal_lets_requests_finish_and_aborts_what_does_not() -> None:
    gate = asyncio.Event()

    async def slow(worker: FakeWorker, seen: Any, reader: Any, writer: Any) -> None:
        await gate.wait()
        await normal(worker, seen, reader, writer)

    async with workers(slow, hang) as [finishing, hanging]:
        urls = (finishing.url, hanging.url)
        flags = ("--policy", "round_robin", "--shutdown-grace-period-secs", "0.5")
        async with command("--worker-urls", *urls, *flags) as running:
            tasks = [asyncio.ensure_future(ask(running.port, {"model": "tiny"})) for _ in range(2)]
            rid = (await hanging.event("request")).json["rid"]
            await finishing.event("request")
            running.process.terminate()
            gate.set()
            assert await hanging.event("abort") == {"rid": rid, "abort_all": False}
            statuses = sorted([(await soon(task)).status for task in tasks])
            assert statuses == [200, 503]
            assert finishing.aborts == []
            assert await soon(running.process.wait()) == 0  # a second signal would end it at once


@pytest.mark.parametrize(
    "words",
    [
        ["--policy", "magic"],
        ["--worker-urls", "ftp://a"],
        ["--prefill", "http://a"],
        ["--pd-disaggregation", "--prefill", "http://a"],
        ["--worker-urls", "http://a", "http://a"],
        ["--sampling-defaults", '{"n":1,"n":1}'],
        ["--polcy", "random"],
    ],
)
async def test_flags_that_cannot_be_meant_end_it_with_a_sentence(words: list[str]) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "keel", "router", *words),
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    _, text = await soon(process.communicate())
    assert process.returncode == 2
    assert text.startswith(b"error: ")
    assert b"Traceback" not in text


async def test_a_taken_port_is_said_in_a_sentence() -> None:
    async with workers(normal) as [worker]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "keel", "router", "--port", str(worker.port)),
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        )
        _, text = await soon(process.communicate())
        assert process.returncode == 4
        assert b"is in use" in text


async def test_several_processes_share_port_workers_load_and_metrics() -> None:
    async with workers(normal, normal) as [one, two]:
        flags = ("--worker-urls", one.url, "--policy", "least_load")
        async with command(*flags, processes=2) as running:
            assert len(running.children()) == 2
            # Connections spread: with enough of them both processes answer.
            replies = [await ask(running.port, {"model": "tiny"}) for _ in range(40)]
            assert {reply.status for reply in replies} == {200}
            prefixes = {reply.headers["x-request-id"].rsplit("-", 1)[0] for reply in replies}
            assert len(prefixes) == 2
            assert await total(running.port, REQUESTS) == 40

            # A change through one is known to all.
            assert (await ask(running.port, {"url": two.url}, path="/workers")).status == 201
            listed = [await ask(running.port, path="/workers", method="GET") for _ in range(10)]
            assert {len(reply.json["workers"]) for reply in listed} == {2}

            # Load that one has in hand is seen by the other.
            for worker in (one, two):
                worker.behaviour = hang
                worker.in_hand = 0
            held = [await Client.open(running.port) for _ in range(20)]
            for number, client in enumerate(held):
                client.send(body={"model": "tiny"})
                await until(lambda n=number: one.in_hand + two.in_hand == n + 1)
            assert one.in_hand == two.in_hand == 10
            listed = [await ask(running.port, path="/workers", method="GET") for _ in range(10)]
            assert {w["load"] for reply in listed for w in reply.json["workers"]} == {10}
            for client in held:
                client.leave()
            await until(lambda: len(one.aborts) + len(two.aborts) == 20)

            path = f"/workers/{quote(one.url, safe='')}"
            assert (await ask(running.port, path=path, method="DELETE")).status == 202
            await _until_async(running.port, 1)
        assert running.process.returncode == 0
        assert "Traceback" not in running.text


async def _until_async(port: int, count: int) -> None:
    async with asyncio.timeout(10):
        while True:
            listed = [await ask(port, path="/workers", method="GET") for _ in range(6)]
            if {len(reply.json["workers"]) for reply in listed} == {count}:
                return


async def test_a_process_that_dies_is_replaced_and_its_load_is_forgotten() -> None:
    async with workers(hang) as [worker]:
        flags = ("--worker-urls", worker.url, "--policy", "least_load")
        async with command(*flags, processes=2) as running:
            held = [await Client.open(running.port) for _ in range(20)]
            for client in held:
                client.send(body={"model": "tiny"})
            await until(lambda: worker.in_hand == 20)
            before = set(running.children())
            victim = min(before)
            os.kill(victim, signal.SIGKILL)
            await until(lambda: running.text.count("listening on") == 3)
            assert len(set(running.children()) - before) == 1
            await until(lambda: worker.left > 0)  # the engine sees its connections end
            alive = 20 - worker.left
            for _ in range(6):
                listed = await ask(running.port, path="/workers", method="GET")
                assert listed.json["workers"][0]["load"] == alive
            worker.behaviour = normal
            for _ in range(10):
                assert (await ask(running.port, {"model": "tiny"})).status == 200
            for client in held:
                client.leave()


async def test_processes_end_when_their_supervisor_is_killed() -> None:
    async with workers(stall) as [worker]:
        flags = ("--worker-urls", worker.url, "--shutdown-grace-period-secs", "0")
        async with command(*flags, processes=2) as running:
            client = await Client.open(running.port)
            client.send(body={"model": "tiny", "stream": True})
            await worker.event("request")
            children = running.children()
            running.process.kill()
            await worker.event("abort")
            await until(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in children))
