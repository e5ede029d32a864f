"""Whoever stops waiting: the engine is told once, and only what it may be told."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from keel.router.breaker import State
from support.routing import (
    Client,
    FakeWorker,
    Running,
    ask,
    fixed,
    hang,
    normal,
    raw,
    routing,
    soon,
    stall,
    until,
    workers,
)

AUTHORIZED = {"authorization": "Bearer test", "x-request-id": "reused-gateway-id"}
RID = re.compile(r"[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}")


async def quiet(worker: FakeWorker, running: Running) -> None:
    """Nothing more comes: the router has nothing in hand and no abort on its way."""
    await until(lambda: not running.router.in_flight and not running.router.aborter._running)
    assert worker.events.empty()


async def aborted(worker: FakeWorker, rid: str) -> None:
    """The engine was told to abort that request."""
    assert await worker.event("abort") == {"rid": rid, "abort_all": False}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_completed_request_is_never_aborted(stream: bool) -> None:
    async with workers(normal) as [worker], routing(worker) as running:
        reply = await ask(running.port, {"model": "tiny", "stream": stream}, headers=AUTHORIZED)
        assert reply.status == 200
        assert reply.whole
        seen = await worker.event("request")
        assert RID.fullmatch(seen.json["rid"])
        await quiet(worker, running)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_before_the_headers_has_its_request_aborted_once(
    stream: bool,
) -> None:
    async with workers(hang) as [worker], routing(worker) as running:
        worker.abort_status = 500  # a failing abort is no failure of the worker
        breaker = running.worker(worker).breaker
        for _ in range(2):
            breaker.fail(breaker.acquire())
        client = await Client.open(running.port)
        client.send(body={"model": "tiny", "stream": stream}, headers=AUTHORIZED)
        seen = await worker.event("request")
        client.leave()
        await aborted(worker, seen.json["rid"])
        assert worker.abort_headers[0]["authorization"] == "Bearer test"
        assert "x-request-id" not in worker.abort_headers[0]
        await quiet(worker, running)
        await until(lambda: worker.left == 1)
        assert breaker.state is State.CLOSED
        assert breaker.failures == 2
        assert running.worker(worker).load == 0


async def test_a_client_that_leaves_a_silent_stream_is_noticed_without_waiting_for_a_token() -> (
    None
):
    async with workers(stall) as [worker], routing(worker) as running:
        client = await Client.open(running.port)
        client.send(body={"model": "tiny", "stream": True}, headers=AUTHORIZED)
        seen = await worker.event("request")
        await client.head()
        await client.chunk()
        assert running.worker(worker).load == 1
        client.leave()
        await aborted(worker, seen.json["rid"])
        await until(lambda: worker.left == 1)
        await quiet(worker, running)
        assert running.worker(worker).load == 0


async def test_a_client_that_closes_its_half_is_gone() -> None:
    async with workers(hang) as [worker], routing(worker) as running:
        client = await Client.open(running.port)
        client.send(body={"model": "tiny"})
        seen = await worker.event("request")
        client.writer.write_eof()
        await aborted(worker, seen.json["rid"])
        await quiet(worker, running)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/generate"])
async def test_every_generation_path_is_aborted(path: str) -> None:
    async with workers(hang) as [worker], routing(worker) as running:
        client = await Client.open(running.port)
        client.send(path, {"model": "tiny", "prompt": "a", "text": "a"})
        seen = await worker.event("request")
        client.leave()
        await aborted(worker, seen.json["rid"])
        await quiet(worker, running)


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"rid": "a"}, "/v1/chat/completions"),
        ({"rid": ["a", "b"]}, "/v1/chat/completions"),
        ({"n": 2}, "/v1/chat/completions"),
        ({"n": "3"}, "/v1/chat/completions"),
        ({"n": [2]}, "/v1/chat/completions"),
        ({"n": True}, "/v1/chat/completions"),
        ({"prompt": ["a", "b"]}, "/v1/completions"),
        ({"best_of": 2}, "/v1/completions"),
        ({"text": ["a", "b"]}, "/generate"),
        ({"input_ids": [[1], [2]]}, "/generate"),
        ({"text": "a", "sampling_params": {"n": 2}}, "/generate"),
        ({"text": "a", "sampling_params": [{}, {}]}, "/generate"),
    ],
)
async def test_what_the_router_has_not_minted_or_fans_out_is_forwarded_as_it_is_and_not_aborted(
    fields: dict[str, Any], path: str
) -> None:
    async with workers(stall) as [worker], routing(worker) as running:
        body = {"model": "tiny", "stream": True, **fields}
        client = await Client.open(running.port)
        client.send(path, body)
        seen = await worker.event("request")
        assert seen.json == body
        await client.head()
        client.leave()
        await until(lambda: worker.left == 1)  # its connection is closed all the same
        await quiet(worker, running)


@pytest.mark.parametrize(
    ("fields", "flags", "mints"),
    [
        ({}, "", True),
        ({"n": 1}, "", True),
        ({"n": None, "rid": None}, "", True),
        ({}, '--sampling-defaults {"n":1}', True),
        ({}, '--sampling-defaults {"n":4}', False),
        ({"n": None}, '--sampling-defaults {"n":4}', False),
        ({"n": 1}, '--sampling-defaults {"n":4} --sampling-conflict allow', True),
    ],
)
async def test_the_number_of_samples_counts_after_defaults(
    fields: dict[str, Any], flags: str, mints: bool
) -> None:
    async with workers(normal) as [worker], routing(worker, flags=flags) as running:
        await ask(running.port, {"model": "tiny", **fields})
        seen = await worker.event("request")
        assert bool(seen.json.get("rid")) is mints


@pytest.mark.parametrize("status", [400, 429, 500, 503])
async def test_a_stream_that_the_worker_refused_is_not_aborted(status: int) -> None:
    async def refuse(worker: FakeWorker, seen: Any, reader: Any, writer: Any) -> None:
        writer.write(b"HTTP/1.1 %d X\r\ntransfer-encoding: chunked\r\n\r\n" % status)
        writer.write(b"3\r\nnot\r\n")
        await writer.drain()
        worker.left += 1
        await reader.read()

    async with workers(refuse) as [worker], routing(worker) as running:
        client = await Client.open(running.port)
        client.send(body={"model": "tiny", "stream": True})
        await worker.event("request")
        assert (await client.head())[0] == status
        client.leave()
        await quiet(worker, running)
        assert worker.aborts == []


async def test_concurrent_requests_with_one_request_id_have_ids_of_their_own() -> None:
    async with workers(hang) as [worker], routing(worker) as running:
        clients = [await Client.open(running.port) for _ in range(2)]
        for client in clients:
            client.send(body={"model": "tiny"}, headers=AUTHORIZED)
        rids = [(await worker.event("request")).json["rid"] for _ in clients]
        assert rids[0] != rids[1]
        for client in clients:
            client.leave()
        told = [(await worker.event("abort"))["rid"] for _ in clients]
        assert sorted(told) == sorted(rids)
        await quiet(worker, running)


async def test_a_hanging_abort_delays_nobody() -> None:
    async def busy(worker: FakeWorker, seen: Any, reader: Any, writer: Any) -> None:
        if seen.json.get("slow"):
            await hang(worker, seen, reader, writer)
        else:
            await normal(worker, seen, reader, writer)

    async with workers(busy) as [worker], routing(worker) as running:
        hold = asyncio.Event()
        answer = worker._answer

        async def slow_abort(seen: Any, reader: Any, writer: Any) -> None:
            if seen.target == "/abort_request":
                await hold.wait()
            await answer(seen, reader, writer)

        worker._answer = slow_abort  # type: ignore[method-assign]
        client = await Client.open(running.port)
        client.send(body={"model": "tiny", "slow": True})
        await worker.event("request")
        client.leave()
        await until(lambda: len(running.router.aborter._running) == 1)
        assert (await ask(running.port, {"model": "tiny"})).status == 200
        assert running.worker(worker).load == 0
        hold.set()
        await soon(running.router.aborter.settle())


async def test_a_client_that_leaves_while_its_router_connects_reached_no_engine() -> None:
    # A full backlog: connects hang.
    import socket

    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        fillers = [socket.socket() for _ in range(3)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(address)
        from keel.router.worker import WorkerSpec

        spec = WorkerSpec(f"http://127.0.0.1:{address[1]}", models=("tiny",))
        async with routing(specs=[spec]) as running:
            client = await Client.open(running.port)
            client.send(body={"model": "tiny"})
            await until(lambda: len(running.router.in_flight) == 1)
            client.leave()
            await until(lambda: not running.router.in_flight)
            assert not running.router.aborter._running
        for filler in fillers:
            filler.close()


@pytest.mark.parametrize("partial", [False, True])
async def test_a_worker_that_breaks_off_is_told_to_abort_too(partial: bool) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"
    pieces = [head] if partial else []
    async with (
        workers(raw(*pieces, then_reset=not partial)) as [worker],
        routing(worker, flags="--disable-retries") as running,
    ):
        reply = await ask(running.port, {"model": "tiny"})
        assert reply.status == 502
        seen = await worker.event("request")
        await aborted(worker, seen.json["rid"])
        assert running.worker(worker).breaker.failures == 1


async def test_a_router_that_ends_aborts_what_did_not_finish() -> None:
    async with workers(hang, stall) as [hanging, stalling]:
        async with routing(hanging, stalling) as running:
            clients = [await Client.open(running.port) for _ in range(2)]
            for client in clients:
                client.send(body={"model": "tiny", "stream": True})
            rids = [(await w.event("request")).json["rid"] for w in (hanging, stalling)]
            replies = [asyncio.ensure_future(client.reply()) for client in clients]
            await until(lambda: len(running.router.in_flight) == 2)
        await aborted(hanging, rids[0])
        await aborted(stalling, rids[1])
        answers = sorted([await soon(reply) for reply in replies], key=lambda r: r.status)
        assert (answers[0].status, answers[0].whole) == (200, False)
        assert (answers[1].status, answers[1].error_code) == (503, "router_shutting_down")


@pytest.mark.parametrize("before_headers", [True, False])
@pytest.mark.parametrize("stream", [True, False])
async def test_the_janitor_ends_and_aborts_stale_requests(
    before_headers: bool, stream: bool
) -> None:
    behaviour = hang if before_headers else stall
    async with (
        workers(behaviour) as [worker],
        routing(worker, flags="--stale-request-timeout-secs 0.05") as running,
    ):
        reply = await ask(running.port, {"model": "tiny", "stream": stream})
        seen = await worker.event("request")
        if before_headers:
            assert reply.status == 504
            assert reply.headers["x-router-error-code"] == "stale_request_expired"
            assert reply.error_code == "stale_request_expired"
        else:
            assert reply.status == 200
            assert not reply.whole
        await aborted(worker, seen.json["rid"])
        await quiet(worker, running)
        assert running.worker(worker).load == 0


async def test_a_rejected_json_answer_that_breaks_off_is_not_aborted() -> None:
    head = b"HTTP/1.1 400 Bad\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"
    async with (
        workers(raw(head)) as [worker],
        routing(worker, flags="--disable-retries") as running,
    ):
        assert (await ask(running.port, {"model": "tiny"})).status == 502
        await worker.event("request")
        await quiet(worker, running)


async def test_only_the_router_says_which_request_is_whose() -> None:
    """A prefix of ids would hit others' requests, so clients cannot abort through the router."""
    async with (
        workers(fixed(200, b"{}")) as [worker],
        routing(worker, flags="--admin-api-key s3cret") as running,
    ):
        body = {"rid": "", "abort_all": True}
        reply = await ask(running.port, body, path="/abort_request")
        assert reply.status == 401
        assert worker.aborts == []
        reply = await ask(
            running.port, body, path="/abort_request", headers={"authorization": "Bearer s3cret"}
        )
        assert reply.status == 200
        assert worker.aborts == [body]
