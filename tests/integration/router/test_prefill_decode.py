"""One request, two workers: prefill by itself, the answer from decode."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from keel.router.worker import Role, WorkerSpec
from support.routing import (
    ANSWER,
    EVENTS,
    Behaviour,
    Client,
    FakeWorker,
    Running,
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


def pair(prefill: str, decode: str) -> list[WorkerSpec]:
    return [
        WorkerSpec(prefill, Role.PREFILL, bootstrap_port=8997),
        WorkerSpec(decode, Role.DECODE),
    ]


@contextlib.asynccontextmanager
async def paired(
    prefill: Behaviour, decode: Behaviour, flags: str = ""
) -> AsyncIterator[tuple[FakeWorker, FakeWorker, Running]]:
    """A prefill worker, a decode worker, and the router before them."""
    async with workers(prefill, decode) as [p, d]:
        flags = f"--pd-disaggregation {flags}"
        async with routing(p, d, specs=pair(p.url, d.url), flags=flags) as running:
            yield p, d, running


async def idle(running: Running) -> None:
    """Nothing is in hand, and nothing counted as if it were."""
    await until(lambda: not running.router.in_flight and not running.router.legs)
    assert [worker.load for worker in running.router.table] == [0] * len(running.router.table)


@pytest.mark.parametrize("stream", [False, True])
async def test_both_halves_meet_in_one_room_and_neither_has_an_id(stream: bool) -> None:
    async with paired(normal, normal) as (p, d, running):
        body = {"model": "tiny", "stream": stream, "bootstrap_room": 7}
        answer = await ask(running.port, body)
        assert answer.body == (b"".join(EVENTS) if stream else ANSWER)
        await until(lambda: len(p.seen) == 1)
        first, second = p.seen[0].json, d.seen[0].json
        assert first == second
        assert "rid" not in first
        assert first["bootstrap_host"] == "127.0.0.1"
        assert first["bootstrap_port"] == 8997
        assert isinstance(first["bootstrap_room"], int)
        assert 0 <= first["bootstrap_room"] < 2**63
        assert first["bootstrap_room"] != 7
        await idle(running)


async def test_rooms_differ() -> None:
    async with (
        workers(normal, normal) as [p, d],
        routing(p, d, specs=pair(p.url, d.url), flags="--pd-disaggregation") as running,
    ):
        for _ in range(20):
            await ask(running.port, {"model": "tiny"})
        assert len({seen.json["bootstrap_room"] for seen in d.seen}) == 20


@pytest.mark.parametrize("broken", [fixed(500, b"{}"), raw(then_reset=True)])
async def test_a_prefill_that_fails_does_not_change_decodes_answer(broken: Behaviour) -> None:
    async with paired(broken, normal) as (p, d, running):
        answer = await ask(running.port, {"model": "tiny"})
        assert (answer.status, answer.body) == (200, ANSWER)
        await idle(running)
        assert running.worker(p).breaker.failures == 1
        assert running.worker(d).breaker.failures == 0


async def test_a_client_that_leaves_aborts_neither_half_and_prefill_goes_on() -> None:
    gate = asyncio.Event()

    async def slow_prefill(worker: FakeWorker, seen: Any, reader: Any, writer: Any) -> None:
        await gate.wait()
        await normal(worker, seen, reader, writer)

    async with (
        workers(slow_prefill, stall) as [p, d],
        routing(p, d, specs=pair(p.url, d.url), flags="--pd-disaggregation") as running,
    ):
        client = await Client.open(running.port)
        client.send(body={"model": "tiny", "stream": True})
        await client.head()
        client.leave()
        await until(lambda: d.left == 1)
        assert len(running.router.legs) == 1
        assert running.worker(p).load == 1
        gate.set()
        await idle(running)
        assert p.aborts == d.aborts == []


async def test_without_a_decode_worker_no_prefill_begins() -> None:
    async with workers(normal) as [p]:
        specs = [WorkerSpec(p.url, Role.PREFILL, bootstrap_port=1)]
        async with routing(p, specs=specs, flags="--pd-disaggregation") as running:
            answer = await ask(running.port, {"model": "tiny"})
            assert (answer.status, answer.error_code) == (503, "no_available_workers")
            assert p.seen == []
            await idle(running)


async def test_another_decode_worker_takes_over_with_the_same_prefill() -> None:
    async with workers(normal, normal, normal) as [p, gone, d]:
        specs = [*pair(p.url, gone.url), WorkerSpec(d.url, Role.DECODE)]
        async with routing(p, gone, d, specs=specs, flags="--pd-disaggregation") as running:
            await gone.kill()
            for _ in range(2):
                assert (await ask(running.port, {"model": "tiny"})).status == 200
            await until(lambda: len(p.seen) == 2)
            rooms = [seen.json["bootstrap_room"] for seen in p.seen]
            assert [seen.json["bootstrap_room"] for seen in d.seen] == rooms


async def test_both_halves_come_from_the_bucket_that_the_length_chose() -> None:
    async with workers(*[normal] * 4) as [short_p, short_d, long_p, long_d]:
        specs = [
            WorkerSpec(short_p.url, Role.PREFILL, bootstrap_port=1, bucket=100),
            WorkerSpec(short_d.url, Role.DECODE, bucket=100),
            WorkerSpec(long_p.url, Role.PREFILL, bootstrap_port=2, bucket=float("inf")),
            WorkerSpec(long_d.url, Role.DECODE, bucket=float("inf")),
        ]
        fakes = (short_p, short_d, long_p, long_d)
        async with routing(*fakes, specs=specs, flags="--pd-disaggregation") as running:
            await ask(running.port, {"model": "tiny", "prompt": "hi"})
            await idle(running)
            assert [len(fake.seen) for fake in fakes] == [1, 1, 0, 0]
            await ask(running.port, {"model": "tiny", "prompt": "hi " * 1000})
            await idle(running)
            assert [len(fake.seen) for fake in fakes] == [1, 1, 1, 1]
            await ask(running.port, {"model": "tiny", "max_tokens": 500})
            await idle(running)
            assert [len(fake.seen) for fake in fakes] == [1, 1, 2, 2]


async def test_a_prefill_that_never_answers_is_given_up_after_the_request_time() -> None:
    flags = "--request-timeout-secs 0.1"
    async with paired(hang, normal, flags) as (p, _, running):
        assert (await ask(running.port, {"model": "tiny"})).status == 200
        await idle(running)
        assert running.worker(p).breaker.failures == 1


async def test_other_paths_go_to_one_worker() -> None:
    async with (
        workers(normal, normal) as [p, d],
        routing(p, d, specs=pair(p.url, d.url), flags="--pd-disaggregation") as running,
    ):
        await ask(running.port, path="/get_model_info", method="GET")
        assert (len(p.seen), len(d.seen)) == (0, 1)


async def test_plain_mode_chooses_the_bucket_before_the_worker() -> None:
    async with workers(normal, normal) as [short, long]:
        specs = [WorkerSpec(short.url, bucket=100), WorkerSpec(long.url, bucket=float("inf"))]
        async with routing(short, long, specs=specs) as running:
            await ask(running.port, {"model": "tiny", "prompt": "hi"})
            assert (len(short.seen), len(long.seen)) == (1, 0)
            assert len(short.seen[0].json["rid"]) == 32
            await ask(running.port, {"model": "tiny", "prompt": "hi " * 1000})
            assert (len(short.seen), len(long.seen)) == (1, 1)
