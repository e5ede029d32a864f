"""Workers that fail in every way, and what the client, the breaker and the next worker see."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from keel.router.breaker import State
from keel.router.worker import WorkerSpec
from support.routing import (
    ANSWER,
    END,
    EVENTS,
    Client,
    FakeWorker,
    Seen,
    ask,
    begin_stream,
    chunk,
    fixed,
    hang,
    normal,
    raw,
    reply,
    routing,
    soon,
    stall,
    until,
    workers,
)

HEAD_OF_HUNDRED = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n"
)
BROKEN = {
    "reset": raw(then_reset=True),
    "closed": raw(),
    "half a head": raw(b"HTTP/1.1 200 OK\r\ncontent-le"),
    "half a body": raw(HEAD_OF_HUNDRED + b'{"half":'),
    "no http": raw(b"\x00\x01 nonsense\r\n\r\n"),
}


async def dead_url() -> str:
    """Where nothing listens."""
    server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    return f"http://127.0.0.1:{port}"


@pytest.mark.parametrize("fault", BROKEN)
async def test_a_request_that_a_worker_lost_is_served_by_another(fault: str) -> None:
    async with workers(BROKEN[fault], normal) as [bad, good], routing(bad, good) as running:
        for _ in range(4):
            answer = await ask(running.port, {"model": "tiny"})
            assert (answer.status, answer.body) == (200, ANSWER)
        assert len(good.seen) == 4
        assert len(bad.seen) >= 1
        # Each attempt has an id of its own, and the one that was lost is aborted.
        await until(lambda: len(bad.aborts) == len(bad.seen))
        rids = [seen.json["rid"] for seen in bad.seen + good.seen]
        assert len(set(rids)) == len(rids)
        assert [a["rid"] for a in bad.aborts] == [seen.json["rid"] for seen in bad.seen]
        assert good.aborts == []


@pytest.mark.parametrize("fault", BROKEN)
async def test_a_request_that_nobody_serves_is_a_502_and_counts_against_the_worker(
    fault: str,
) -> None:
    flags = "--disable-retries"
    async with workers(BROKEN[fault]) as [bad], routing(bad, flags=flags) as running:
        answer = await ask(running.port, {"model": "tiny"})
        assert answer.status == 502
        assert answer.error_code in ("upstream_unreachable", "upstream_truncated")
        assert bad.url in answer.json["error"]["message"]
        assert running.worker(bad).breaker.failures == 1
        assert running.worker(bad).load == 0


async def test_a_request_that_may_have_arrived_and_cannot_be_taken_back_is_not_sent_twice() -> None:
    async with workers(raw(then_reset=True), normal) as [bad, good], routing(bad, good) as running:
        answer = await ask(running.port, {"model": "tiny", "n": 2})
        assert answer.status == 502
        assert (len(bad.seen), len(good.seen)) == (1, 0)


async def test_a_worker_that_is_not_there_costs_no_request() -> None:
    url = await dead_url()
    async with workers(normal) as [good]:
        specs = [WorkerSpec(url, models=("tiny",)), WorkerSpec(good.url)]
        async with routing(good, specs=specs) as running:
            for _ in range(6):  # even one that cannot be sent twice
                assert (await ask(running.port, {"model": "tiny", "n": 2})).status == 200
            assert len(good.seen) == 6


async def test_a_worker_that_comes_back_meanwhile_serves_the_waiting_request() -> None:
    async with workers(normal) as [worker], routing(worker) as running:
        await worker.kill()
        task = asyncio.ensure_future(ask(running.port, {"model": "tiny"}))
        await until(lambda: running.router.metrics._counters["retries", ""] >= 1)
        await worker.start()
        assert (await soon(task)).status == 200


async def test_a_stream_that_stalls_ends_in_an_error_after_the_idle_time() -> None:
    flags = "--stream-idle-timeout-secs 0.1"
    async with workers(stall) as [worker], routing(worker, flags=flags) as running:
        answer = await ask(running.port, {"model": "tiny", "stream": True})
        assert (answer.status, answer.body, answer.whole) == (200, EVENTS[0], False)
        seen = await worker.event("request")
        assert await worker.event("abort") == {"rid": seen.json["rid"], "abort_all": False}
        assert running.worker(worker).breaker.failures == 1


async def test_a_worker_that_never_answers_is_a_504_after_the_request_time() -> None:
    flags = "--request-timeout-secs 0.1"
    async with workers(hang) as [worker], routing(worker, flags=flags) as running:
        answer = await ask(running.port, {"model": "tiny"})
        assert (answer.status, answer.error_code) == (504, "upstream_timeout")
        seen = await worker.event("request")
        assert await worker.event("abort") == {"rid": seen.json["rid"], "abort_all": False}
        assert running.worker(worker).breaker.failures == 1


async def test_a_stream_that_flows_is_not_bound_by_the_request_time() -> None:
    async def slow(_: FakeWorker, seen: Seen, reader: Any, writer: Any) -> None:
        begin_stream(writer)
        for _ in range(8):
            writer.write(chunk(EVENTS[0]))
            await writer.drain()
            await asyncio.sleep(0.05)
        writer.write(END)
        await writer.drain()

    flags = "--request-timeout-secs 0.1 --stream-idle-timeout-secs 0.3"
    async with workers(slow) as [worker], routing(worker, flags=flags) as running:
        answer = await ask(running.port, {"model": "tiny", "stream": True})
        assert answer.whole
        assert answer.body == EVENTS[0] * 8


async def test_a_stream_that_breaks_off_ends_in_an_error_and_is_not_retried() -> None:
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    broken = raw(head + chunk(EVENTS[0]))
    async with workers(broken, normal) as [bad, good], routing(bad, good) as running:
        answer = await ask(running.port, {"model": "tiny", "stream": True})
        assert (answer.status, answer.body, answer.whole) == (200, EVENTS[0], False)
        assert good.seen == []
        await until(lambda: len(bad.aborts) == 1)
        assert running.worker(bad).breaker.failures == 1


async def test_a_stream_that_ends_without_done_is_complete_if_its_framing_is() -> None:
    async with (
        workers(fixed(200, EVENTS[0], stream=True)) as [worker],
        routing(worker) as running,
    ):
        answer = await ask(running.port, {"model": "tiny", "stream": True})
        assert answer.whole
        await until(lambda: not running.router.in_flight)
        assert worker.aborts == []
        assert running.worker(worker).breaker.failures == 0


async def test_an_error_event_passes_and_is_told_apart() -> None:
    event = b'data: {"error":{"message":"out of memory"}}\n\n'
    async with workers(fixed(200, event, stream=True)) as [worker], routing(worker) as running:
        answer = await ask(running.port, {"model": "tiny", "stream": True})
        assert (answer.body, answer.whole) == (event, True)
        metrics = (await ask(running.port, path="/metrics", method="GET")).body.decode()
        assert 'outcome="error_event"' in metrics
        assert worker.aborts == []


async def test_what_a_worker_sends_after_its_answer_reaches_nobody() -> None:
    surplus = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\npoison"

    async def generous(_: FakeWorker, seen: Seen, reader: Any, writer: Any) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}" + surplus)
        await writer.drain()

    async with workers(generous) as [worker], routing(worker) as running:
        client = await Client.open(running.port)
        for _ in range(3):
            client.send(body={"model": "tiny"})
            assert (await client.reply()).body == b"{}"


async def test_a_worker_without_room_passes_its_request_to_one_that_was_not_asked() -> None:
    full = fixed(503, b'{"error":"full"}')
    async with workers(full, normal) as [busy, free], routing(busy, free) as running:
        for _ in range(4):
            assert (await ask(running.port, {"model": "tiny"})).status == 200
        assert len(free.seen) == 4
        assert busy.aborts == []
        assert running.worker(busy).breaker.failures == 0
    async with workers(full, full) as both, routing(*both) as running:
        answer = await ask(running.port, {"model": "tiny"})
        assert (answer.status, answer.body) == (503, b'{"error":"full"}')
        assert [len(worker.seen) for worker in both] == [1, 1]


BREAKER = "--cb-failure-threshold 3 --cb-timeout-duration-secs 0.2 --cb-success-threshold 2"


@pytest.mark.parametrize("status", [400, 404, 422, 429, 503])
async def test_what_is_the_clients_doing_or_a_lack_of_room_opens_no_breaker(status: int) -> None:
    async with (
        workers(fixed(status, b"{}")) as [worker],
        routing(worker, flags=BREAKER) as running,
    ):
        for _ in range(20):
            assert (await ask(running.port, {"model": "tiny"})).status == status
        assert len(worker.seen) == 20
        assert running.worker(worker).breaker.state is State.CLOSED


async def test_failures_in_a_row_open_the_breaker_and_a_probe_closes_it() -> None:
    works = False

    async def moody(worker: FakeWorker, seen: Seen, reader: Any, writer: Any) -> None:
        await (normal if works else fixed(500, b"{}"))(worker, seen, reader, writer)

    async with workers(moody) as [worker], routing(worker, flags=BREAKER) as running:
        breaker = running.worker(worker).breaker
        for _ in range(3):
            assert (await ask(running.port, {"model": "tiny"})).status == 500
        assert breaker.state is State.OPEN
        answer = await ask(running.port, {"model": "tiny"})
        assert (answer.status, answer.error_code) == (503, "breaker_open")
        assert len(worker.seen) == 3  # it was left alone
        await asyncio.sleep(0.2)
        assert (await ask(running.port, {"model": "tiny"})).status == 500  # the probe
        assert breaker.state is State.OPEN
        works = True
        await asyncio.sleep(0.2)
        for state in (State.HALF_OPEN, State.CLOSED):
            assert (await ask(running.port, {"model": "tiny"})).status == 200
            assert breaker.state is state


async def test_half_open_admits_one_probe_and_a_client_that_leaves_gives_it_back() -> None:
    behaviour: Any = fixed(500, b"{}")

    async def as_told(worker: FakeWorker, seen: Seen, reader: Any, writer: Any) -> None:
        await behaviour(worker, seen, reader, writer)

    async with workers(as_told) as [worker], routing(worker, flags=BREAKER) as running:
        for _ in range(3):
            await ask(running.port, {"model": "tiny"})
        await asyncio.sleep(0.2)
        behaviour = hang
        probe = await Client.open(running.port)
        probe.send(body={"model": "tiny"})
        await until(lambda: worker.in_hand == 1)
        assert (await ask(running.port, {"model": "tiny"})).error_code == "breaker_open"
        probe.leave()
        await until(lambda: worker.in_hand == 0 and not running.router.in_flight)
        assert running.worker(worker).breaker.state is State.HALF_OPEN
        behaviour = normal
        assert (await ask(running.port, {"model": "tiny"})).status == 200


async def test_an_open_breaker_sends_requests_elsewhere() -> None:
    async with (
        workers(fixed(500, b"{}"), normal) as [bad, good],
        routing(bad, good, flags=BREAKER) as running,
    ):
        statuses = [(await ask(running.port, {"model": "tiny"})).status for _ in range(20)]
        assert statuses.count(500) == 3
        assert len(good.seen) == 17


async def test_success_counts_only_once_the_body_is_complete() -> None:
    gate = asyncio.Event()

    async def two_halves(_: FakeWorker, seen: Seen, reader: Any, writer: Any) -> None:
        writer.write(HEAD_OF_HUNDRED + b"x" * 50)
        await writer.drain()
        await gate.wait()
        writer.write(b"x" * 50)
        await writer.drain()

    async with workers(two_halves) as [worker], routing(worker) as running:
        breaker = running.worker(worker).breaker
        breaker.fail(breaker.acquire())
        task = asyncio.ensure_future(ask(running.port, {"model": "tiny"}))
        await worker.event("request")
        await asyncio.sleep(0.05)
        assert breaker.failures == 1
        gate.set()
        assert (await soon(task)).body == b"x" * 100
        assert breaker.failures == 0


async def test_a_url_that_no_worker_can_have_is_refused_at_the_door() -> None:
    async with routing() as running:
        for url in ("https://a", "a:1", "http://", "http://a:99999", "http://a/?q", "http://u@h"):
            answer = await ask(running.port, {"url": url}, path="/workers")
            assert (answer.status, answer.error_code) == (400, "invalid_worker"), url


async def test_without_workers_requests_are_refused_and_the_router_lives() -> None:
    async with routing() as running:
        answer = await ask(running.port, {"model": "tiny"})
        assert (answer.status, answer.error_code) == (503, "no_available_workers")
        assert answer.headers["retry-after"] == "1"
        assert (await ask(running.port, path="/health", method="GET")).status == 200
        assert (await ask(running.port, path="/ready", method="GET")).status == 503


async def test_a_connection_that_a_worker_closed_meanwhile_costs_no_request() -> None:
    """As uvicorn does after five seconds; a request with `n` cannot be sent twice."""

    async def once(_: FakeWorker, seen: Seen, reader: Any, writer: Any) -> None:
        await normal(_, seen, reader, writer)
        writer.close()

    async with workers(once) as [worker], routing(worker) as running:
        for _ in range(20):
            assert (await ask(running.port, {"model": "tiny", "n": 2})).status == 200
            await asyncio.sleep(0.01)


async def test_a_slow_worker_holds_up_nobody_elses_request() -> None:
    async with workers(hang, normal) as [slow, quick], routing(slow, quick) as running:
        waiting = []
        while len(slow.seen) < 5:
            client = await Client.open(running.port)
            client.send(body={"model": "tiny"})
            waiting.append(client)
            await asyncio.sleep(0.01)
        started = time.monotonic()
        while len(quick.seen) < 20:
            client = await Client.open(running.port)
            client.send(body={"model": "tiny"})
            waiting.append(client)
            await asyncio.sleep(0.001)
        assert time.monotonic() - started < 5
        for client in waiting:
            client.leave()


async def test_a_body_that_a_worker_does_not_wait_for_is_no_failure() -> None:
    async def early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reply(writer, 413, b'{"error":"too large for me"}')
        await asyncio.sleep(0.05)
        writer.close()

    server = await asyncio.start_server(early, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with routing(specs=[WorkerSpec(url, models=("tiny",))]) as running:
        answer = await ask(running.port, {"model": "tiny", "x": "y" * 5_000_000})
        assert (answer.status, answer.body) == (413, b'{"error":"too large for me"}')
    server.close()
