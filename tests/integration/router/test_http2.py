"""HTTP/2 without TLS towards workers that want it."""

from __future__ import annotations

import asyncio
import json

import pytest

from keel.router.worker import WorkerSpec
from support.routing import Client, FakeWorker, ask, normal, routing, until, workers

pytest.importorskip("h2", reason="the h2 library is not installed")
from support.h2_worker import H2Worker, h2_worker


def spec_of(worker: H2Worker) -> WorkerSpec:
    return WorkerSpec(worker.url, http2=True)


async def test_an_answer_comes_through_and_one_connection_carries_many_requests() -> None:
    async with h2_worker() as worker, routing(specs=[spec_of(worker)]) as running:
        body = b'{"model":"tiny","messages":[]}'
        answers = await asyncio.gather(*(ask(running.port, body) for _ in range(20)))
        assert {answer.status for answer in answers} == {200}
        assert len(worker.seen) == 20
        headers, forwarded = worker.seen[0]
        assert headers[":authority"] == f"127.0.0.1:{worker.port}"
        assert headers["content-type"] == "application/json"
        assert "host" not in headers
        assert len(json.loads(forwarded)["rid"]) == 32
        assert worker.connections == 1


async def test_a_stream_passes_event_by_event() -> None:
    async with h2_worker() as worker, routing(specs=[spec_of(worker)]) as running:
        client = await Client.open(running.port)
        client.send(body={"model": "tiny", "stream": True})
        status, headers = await client.head()
        assert (status, headers["content-type"]) == (200, "text/event-stream")
        assert await client.chunk() == b"data: a\n\n"
        worker.gate.set()
        assert await client.chunk() == b"data: [DONE]\n\n"
        assert await client.chunk() == b""
        await until(lambda: not running.router.in_flight)
        assert worker.aborts == []


async def test_a_client_that_leaves_has_its_stream_reset_and_aborted_and_others_go_on() -> None:
    async with h2_worker() as worker, routing(specs=[spec_of(worker)]) as running:
        leaving, staying = [await Client.open(running.port) for _ in range(2)]
        for client in (leaving, staying):
            client.send(body={"model": "tiny", "stream": True})
            await client.head()
            await client.chunk()
        leaving.leave()
        await until(lambda: worker.aborts and worker.reset)
        rids = [json.loads(body)["rid"] for _, body in worker.seen]
        assert worker.aborts == [{"rid": rids[0], "abort_all": False}]
        worker.gate.set()
        assert await staying.chunk() == b"data: [DONE]\n\n"


async def test_bodies_larger_than_the_windows_pass_both_ways() -> None:
    async with h2_worker() as worker, routing(specs=[spec_of(worker)]) as running:
        body = json.dumps({"model": "tiny", "x": "y" * 3_000_000}).encode()
        answer = await ask(running.port, body)
        assert answer.json["body"] == len(worker.seen[0][1]) > 3_000_000
        answer = await ask(running.port, path="/flood", method="GET")
        assert len(answer.body) == worker.flood


async def test_a_client_that_does_not_read_holds_back_its_stream_and_no_other() -> None:
    async with h2_worker() as worker, routing(specs=[spec_of(worker)]) as running:
        worker.flood = 200 * 2**20
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port, limit=1024)
        slow = Client(reader, writer)
        slow.send("/flood", method="GET")
        before = -1
        while before != worker.sent:
            before = worker.sent
            await asyncio.sleep(0.3)
        assert worker.sent < 50 * 2**20
        answer = await ask(running.port, {"model": "tiny"})
        assert answer.status == 200
        assert worker.connections == 1
        slow.leave()
        await until(lambda: worker.reset)


async def test_a_worker_that_speaks_only_http2_cannot_be_reached_in_http1() -> None:
    async with h2_worker() as worker:
        spec = WorkerSpec(worker.url, http2=False, models=("tiny",))
        async with routing(specs=[spec], flags="--disable-retries") as running:
            answer = await ask(running.port, {"model": "tiny"})
            assert answer.status == 502
            assert worker.seen == []


async def test_a_worker_that_speaks_only_http1_cannot_be_reached_in_http2() -> None:
    async with workers(normal) as [worker]:
        spec = WorkerSpec(worker.url, http2=True, models=("tiny",))
        flags = "--disable-retries --request-timeout-secs 0.5"
        async with routing(specs=[spec], flags=flags) as running:
            answer = await ask(running.port, {"model": "tiny"})
            assert answer.status in (502, 504)
            assert worker.seen == []


async def test_a_worker_that_says_so_is_spoken_to_in_http2() -> None:
    """It answers questions in HTTP/1.1 and the rest, on another connection, in HTTP/2."""
    async with h2_worker() as h2_side:

        class Both(FakeWorker):
            async def _serve(
                self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
            ) -> None:
                first = await reader.readexactly(3)
                reader._buffer[:0] = first  # type: ignore[attr-defined]
                if first == b"PRI":
                    await h2_side.serve(reader, writer)
                else:
                    await super()._serve(reader, writer)

        worker = Both(normal, info={"enable_http2": True})
        await worker.start()
        async with routing(worker) as running:
            await until(lambda: hasattr(running.worker(worker).upstream, "authority"))
            assert (await ask(running.port, {"model": "tiny"})).status == 200
            assert len(h2_side.seen) == 1
            assert worker.seen == []
        await worker.kill()


async def test_a_connection_that_ends_fails_its_streams_and_retries_what_may_be() -> None:
    async with h2_worker() as worker, workers(normal) as [other]:
        specs = [spec_of(worker), WorkerSpec(other.url)]
        async with routing(other, specs=specs) as running:
            client = await Client.open(running.port)
            client.send(body={"model": "tiny", "stream": True})
            while (await client.head())[0] != 200:
                pass
            await client.chunk()
            for writer in tuple(worker._writers):
                writer.transport.abort()
            if worker.seen:
                with pytest.raises(asyncio.IncompleteReadError):
                    await client.chunk()
            for _ in range(4):
                worker.gate.set()
                assert (await ask(running.port, {"model": "tiny"})).status == 200
