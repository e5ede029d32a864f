"""The router's own limits, as clients meet them."""

from __future__ import annotations

import asyncio
from typing import Any

from support.routing import ANSWER, Client, FakeWorker, Seen, ask, normal, routing, until, workers


async def test_what_is_over_the_limit_waits_and_what_is_over_the_queue_is_sent_away() -> None:
    gate = asyncio.Event()

    async def gated(worker: FakeWorker, seen: Seen, reader: Any, writer: Any) -> None:
        await gate.wait()
        await normal(worker, seen, reader, writer)

    flags = "--max-concurrent-requests 2 --queue-size 2"
    async with workers(gated) as [worker], routing(worker, flags=flags) as running:
        clients = [await Client.open(running.port) for _ in range(4)]
        for number, client in enumerate(clients):
            client.send(body={"model": "tiny"})
            await until(lambda n=number: len(running.router.in_flight) == n + 1)
        answer = await ask(running.port, {"model": "tiny"})
        assert (answer.status, answer.error_code) == (429, "queue_full")
        assert answer.headers["retry-after"] == "1"
        await until(lambda: len(worker.seen) == 2)
        metrics = (await ask(running.port, path="/metrics", method="GET")).body.decode()
        assert "keel_router_waiting 2.0" in metrics
        assert 'outcome="limited"' in metrics
        clients[3].leave()  # while it waits: no engine heard of it, none is told
        await until(lambda: len(running.router.in_flight) == 3)
        gate.set()
        for client in clients[:3]:
            assert (await client.reply()).body == ANSWER
        assert len(worker.seen) == 3
        assert worker.aborts == []
        assert running.worker(worker).breaker.failures == 0


async def test_who_waits_too_long_is_told_so_and_leaves_room_for_others() -> None:
    gate = asyncio.Event()

    async def gated(worker: FakeWorker, seen: Seen, reader: Any, writer: Any) -> None:
        await gate.wait()
        await normal(worker, seen, reader, writer)

    flags = "--max-concurrent-requests 1 --queue-timeout-secs 0.05"
    async with workers(gated) as [worker], routing(worker, flags=flags) as running:
        first = await Client.open(running.port)
        first.send(body={"model": "tiny"})
        await worker.event("request")
        late = await ask(running.port, {"model": "tiny"})
        assert (late.status, late.error_code) == (408, "queue_timeout")
        gate.set()
        assert (await first.reply()).status == 200
        assert (await ask(running.port, {"model": "tiny"})).status == 200
        assert len(worker.seen) == 2


async def test_a_rate_spreads_requests_over_time() -> None:
    flags = "--rate-limit-tokens-per-second 20 --max-concurrent-requests 2"
    async with workers(normal) as [worker], routing(worker, flags=flags) as running:
        loop = asyncio.get_running_loop()
        started = loop.time()
        answers = await asyncio.gather(*(ask(running.port, {"model": "tiny"}) for _ in range(8)))
        assert {answer.status for answer in answers} == {200}
        assert loop.time() - started >= 0.25  # 2 at once, 6 more at 20 a second
