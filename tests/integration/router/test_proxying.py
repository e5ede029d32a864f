"""Requests and answers pass unchanged, in the form that both sides speak."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import pytest

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
    reply,
    routing,
    stall,
    until,
    workers,
)


def without_rid(body: bytes) -> bytes:
    """A forwarded body without what the router put before its last brace."""
    at = body.rindex(b'"rid":"')
    before = body[:at].removesuffix(b",")
    return before + body[at + len(b'"rid":""') + 32 :]


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"tiny","messages":[]}',
        b' {\n "model" : "tiny" ,\t"messages":[ ] } \n',
        b"{}",
        b"{ \n }\r\n",
        b'{"model":"tiny","a":1,"a":2,"n":null,"user":"u","max_tokens":5,"x":{"}":"{"}}',
        b'{"model":"tiny","weird":1.0e+5,"big":123456789012345678901234567890}',
        '{"model":"tiny","text":"€\\u20ac\\"}"}'.encode(),
    ],
)
async def test_a_body_reaches_the_worker_byte_for_byte_but_for_the_added_id(body: bytes) -> None:
    async with workers(normal) as [worker], routing(worker) as running:
        answer = await ask(running.port, body)
        assert answer.status == 200
        assert without_rid(worker.seen[0].raw) == body
        assert len(json.loads(worker.seen[0].raw)["rid"]) == 32


async def test_nothing_to_add_leaves_the_body_as_it_is() -> None:
    async with workers(normal) as [worker], routing(worker) as running:
        body = b'{ "rid" : "mine","model":"tiny" , "n":1}'
        await ask(running.port, body)
        assert worker.seen[0].raw == body


async def test_a_body_of_many_megabytes_survives() -> None:
    async with workers(normal) as [worker], routing(worker) as running:
        body = b'{"model":"tiny","messages":[{"content":"' + b"\\u20ac }" * 2_000_000 + b'"}]}'
        assert (await ask(running.port, body)).status == 200
        assert without_rid(worker.seen[0].raw) == body


@pytest.mark.parametrize(
    "body", [b"", b"[1]", b'{"a":', b'{"a":1}}', b"null", b'"x"', b'{"a":NaN}', b"{'a':1}", b"\xff"]
)
async def test_a_body_that_is_no_json_object_is_refused(body: bytes) -> None:
    async with workers(normal) as [worker], routing(worker) as running:
        answer = await ask(running.port, body)
        assert answer.status == 400
        assert answer.error_code == "invalid_request"
        assert worker.seen == []


async def test_json_nested_too_deeply_is_refused_and_not_fatal() -> None:
    async with workers(normal) as [worker], routing(worker) as running:
        answer = await ask(running.port, b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}")
        assert answer.status == 400
        assert (await ask(running.port, {"model": "tiny"})).status == 200


async def test_half_a_surrogate_pair_passes_as_engines_take_it() -> None:
    async with workers(normal) as [worker], routing(worker) as running:
        body = b'{"model":"tiny","messages":[{"content":"\\ud83d"}],"stream":false}'
        assert (await ask(running.port, body)).status == 200
        assert without_rid(worker.seen[0].raw) == body


async def test_a_json_answer_keeps_its_bytes_status_and_headers() -> None:
    extra = "x-engine: yes\r\nset-cookie: a=b\r\n"
    async with (
        workers(fixed(201, b'{ "odd" :1}\n', extra)) as [worker],
        routing(worker) as running,
    ):
        answer = await ask(running.port, {"model": "tiny"})
        assert (answer.status, answer.body) == (201, b'{ "odd" :1}\n')
        assert answer.headers["x-engine"] == "yes"
        assert answer.headers["set-cookie"] == "a=b"
        assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize("status", [400, 404, 422, 429, 500, 503])
async def test_the_workers_own_error_reaches_the_client(status: int) -> None:
    body = b'{"object":"error","message":"the engine\'s words"}'
    async with workers(fixed(status, body)) as [worker], routing(worker) as running:
        answer = await ask(running.port, {"model": "tiny"})
        assert (answer.status, answer.body) == (status, body)
        assert len(worker.seen) == 1  # asked once, a 429 too


async def test_a_stream_passes_event_by_event() -> None:
    gate = asyncio.Event()

    async def slow(_: FakeWorker, seen: Seen, reader: Any, writer: Any) -> None:
        begin_stream(writer)
        writer.write(chunk(EVENTS[0]))
        await writer.drain()
        await gate.wait()
        writer.write(chunk(EVENTS[1]) + END)
        await writer.drain()

    async with workers(slow) as [worker], routing(worker) as running:
        client = await Client.open(running.port)
        client.send(body={"model": "tiny", "stream": True})
        status, headers = await client.head()
        assert (status, headers["content-type"]) == (200, "text/event-stream")
        assert await client.chunk() == EVENTS[0]  # before the worker goes on
        gate.set()
        assert await client.chunk() == EVENTS[1]
        assert await client.chunk() == b""
        assert worker.seen[0].headers["accept"] == "text/event-stream"
        assert worker.seen[0].headers["content-type"] == "application/json"


async def test_chunks_of_one_byte_and_of_ten_megabytes_pass() -> None:
    text = b"data: one by one\n\n"
    large = b"data: " + b"x" * (10 * 2**20) + b"\n\n"

    async def odd(_: FakeWorker, seen: Seen, reader: Any, writer: Any) -> None:
        begin_stream(writer)
        for at in range(len(text)):
            writer.write(chunk(text[at : at + 1]))
            await writer.drain()
        writer.write(chunk(large) + END)
        await writer.drain()

    async with workers(odd) as [worker], routing(worker) as running:
        answer = await ask(running.port, {"model": "tiny", "stream": True})
        assert answer.whole
        assert answer.body == text + large


async def test_invalid_utf8_passes_in_both_directions() -> None:
    broken = b"data: \xff\xfe\xc3\x28\n\n"
    async with workers(fixed(200, broken, stream=True)) as [worker], routing(worker) as running:
        body = b'{"model":"tiny","stream":true,"x":"\xff\xfe"}'
        answer = await ask(running.port, body)
        assert answer.body == broken
        assert without_rid(worker.seen[0].raw) == body


async def test_requests_on_one_connection_are_answered_in_turn() -> None:
    async with workers(normal) as [worker], routing(worker) as running:
        client = await Client.open(running.port)
        for _ in range(3):
            client.send(body={"model": "tiny"})
            assert (await client.reply()).body == ANSWER
        assert worker.connections == 1  # which also served the question for its models


async def test_requests_sent_ahead_are_answered_in_order() -> None:
    async def echo(_: FakeWorker, seen: Seen, reader: Any, writer: Any) -> None:
        await reply(writer, 200, seen.json["user"].encode())

    async with workers(echo) as [worker], routing(worker) as running:
        client = await Client.open(running.port)
        for number in range(20):
            client.send(body={"model": "tiny", "user": f'"{number}"'})
        for number in range(20):
            assert (await client.reply()).json == str(number)


async def test_http_1_0_clients_get_an_answer_that_ends_with_the_connection() -> None:
    async with workers(normal) as [worker], routing(worker) as running:
        client = await Client.open(running.port)
        client.send(body={"model": "tiny", "stream": True}, version="1.0")
        answer = await client.reply()
        assert "transfer-encoding" not in answer.headers
        assert answer.headers["connection"] == "close"
        assert answer.body == b"".join(EVENTS)


async def test_answers_without_framing_end_with_the_workers_connection() -> None:
    async def old(_: FakeWorker, seen: Seen, reader: Any, writer: Any) -> None:
        writer.write(b"HTTP/1.0 200 OK\r\ncontent-type: text/plain\r\n\r\nall of it")
        await writer.drain()
        raise ConnectionResetError

    async with workers(old) as [worker], routing(worker) as running:
        answer = await ask(running.port, path="/odd", method="GET")
        assert (answer.status, answer.body, answer.whole) == (200, b"all of it", True)


async def test_any_other_path_is_passed_on_with_method_query_and_type() -> None:
    async with workers(fixed(200, b"<xml/>")) as [worker], routing(worker) as running:
        headers = {"content-type": "text/xml", "accept": "text/xml"}
        await ask(running.port, b"<a/>", "/any/path?q=1&q=2", "PUT", headers)
        seen = worker.seen[0]
        assert (seen.method, seen.target, seen.raw) == ("PUT", "/any/path?q=1&q=2", b"<a/>")
        assert seen.headers["content-type"] == "text/xml"
        assert seen.headers["accept"] == "text/xml"


async def test_head_and_no_content_have_no_body() -> None:
    async def bare(_: FakeWorker, seen: Seen, reader: Any, writer: Any) -> None:
        if seen.method == "HEAD":
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
        else:
            writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        await writer.drain()

    async with workers(bare) as [worker], routing(worker) as running:
        client = await Client.open(running.port)
        client.send("/x", method="HEAD")
        answer = await client.reply("HEAD")
        assert (answer.status, answer.headers["content-length"]) == (200, "1000")
        client.send("/x", method="DELETE")
        answer = await client.reply()
        assert (answer.status, answer.body) == (204, b"")


async def test_interim_answers_of_a_worker_are_not_the_answer() -> None:
    async def hints(_: FakeWorker, seen: Seen, reader: Any, writer: Any) -> None:
        writer.write(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n")
        await reply(writer, 200, ANSWER)

    async with workers(hints) as [worker], routing(worker) as running:
        client = await Client.open(running.port)
        for _ in range(2):
            client.send(body={"model": "tiny"})
            answer = await client.reply()
            assert (answer.status, answer.body) == (200, ANSWER)
            assert "link" not in answer.headers


async def test_only_allowed_headers_reach_the_worker() -> None:
    async with (
        workers(normal) as [worker],
        routing(worker, flags="--forward-headers X-Custom x-tenant") as running,
    ):
        passed = {
            "authorization": "Bearer k",
            "x-request-id": "abc",
            "x-request-id-parent": "p",
            "x-correlation-id": "c",
            "traceparent": "00-1-2-01",
            "tracestate": "s=1",
            "x-sgl-anything": "1",
            "x-custom": "mine",
        }
        held = {
            "cookie": "secret",
            "x-request-id2": "no",
            "x-data-parallel-rank": "3",
            "x-forwarded-for": "1.2.3.4",
            "connection": "keep-alive",
            "te": "trailers",
        }
        await ask(running.port, {"model": "tiny"}, headers=passed | held)
        seen = worker.seen[0].headers
        assert passed.items() <= seen.items()
        assert not held.keys() & seen.keys()
        assert seen["host"] == f"127.0.0.1:{worker.port}"


async def test_a_request_without_an_id_gets_one_that_worker_and_client_see() -> None:
    async with workers(normal) as [worker], routing(worker) as running:
        answer = await ask(running.port, {"model": "tiny"})
        assert answer.headers["x-request-id"] == worker.seen[0].headers["x-request-id"]
        other = await ask(running.port, {"model": "tiny"})
        assert other.headers["x-request-id"] != answer.headers["x-request-id"]
        named = await ask(running.port, {"model": "tiny"}, headers={"x-request-id": "mine"})
        assert named.headers["x-request-id"] == "mine"


async def test_the_routers_key_is_used_where_the_client_brings_none() -> None:
    async with workers(normal) as [worker], routing(worker, flags="--api-key k1") as running:
        await ask(running.port, {"model": "tiny"})
        assert worker.seen[0].headers["authorization"] == "Bearer k1"
        await ask(running.port, {"model": "tiny"}, headers={"authorization": "Bearer mine"})
        assert worker.seen[1].headers["authorization"] == "Bearer mine"


async def test_a_body_over_the_limit_is_refused_before_it_is_read() -> None:
    flags = "--max-payload-size 1000"
    async with workers(normal) as [worker], routing(worker, flags=flags) as running:
        client = await Client.open(running.port)
        client.writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 5000\r\n\r\n"
        )
        assert (await client.reply()).status == 413  # without having sent it
        client = await Client.open(running.port)
        client.writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
            + chunk(b"x" * 600) * 2
        )
        answer = await client.reply()
        assert (answer.status, answer.error_code) == (413, "body_too_large")
        assert worker.seen == []


async def test_chunked_requests_reach_the_worker_whole() -> None:
    async with workers(normal) as [worker], routing(worker) as running:
        client = await Client.open(running.port)
        client.writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
            + chunk(b'{"model":')
            + chunk(b'"tiny"}')
            + END
        )
        assert (await client.reply()).status == 200
        assert without_rid(worker.seen[0].raw) == b'{"model":"tiny"}'


async def test_a_client_that_asks_before_it_sends_is_told_to_go_on() -> None:
    async with workers(normal) as [worker], routing(worker) as running:
        client = await Client.open(running.port)
        client.writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\n"
            b"content-length: 16\r\n\r\n"
        )
        assert (await client.head())[0] == 100
        client.writer.write(b'{"model":"tiny"}')
        assert (await client.reply()).status == 200


@pytest.mark.parametrize(
    "head",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: a\r\nbad header\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
    ],
)
async def test_what_is_not_http_is_refused(head: bytes) -> None:
    async with workers(normal) as [worker], routing(worker) as running:
        client = await Client.open(running.port)
        client.writer.write(head)
        assert (await client.reply()).status == 400
        assert worker.seen == []


async def test_a_head_over_the_limit_is_refused() -> None:
    async with workers(normal) as [worker], routing(worker) as running:
        client = await Client.open(running.port)
        client.writer.write(b"GET / HTTP/1.1\r\n" + b"x-a: %b\r\n" % (b"y" * 1000) * 100)
        assert (await client.reply()).status == 431


async def test_no_small_write_waits_for_an_acknowledgement() -> None:
    async with workers(stall) as [worker], routing(worker) as running:
        client = await Client.open(running.port)
        client.send(body={"model": "tiny", "stream": True})
        await client.head()
        [connection] = running.router.connections
        upstream = running.worker(worker).upstream
        for transport in (
            connection._transport,
            *(c._transport for c in upstream.open),
        ):
            sock = transport.get_extra_info("socket")
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_a_client_that_does_not_read_holds_its_worker_back_and_not_the_router() -> None:
    written = 0

    async def flood(worker: FakeWorker, seen: Seen, reader: Any, writer: Any) -> None:
        nonlocal written
        begin_stream(writer)
        block = chunk(b"x" * 65536)
        for _ in range(2000):
            writer.write(block)
            await writer.drain()
            written += 65536
        writer.write(END)
        await writer.drain()

    async with workers(flood) as [worker], routing(worker) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port, limit=1024)
        client = Client(reader, writer)
        client.send(body={"model": "tiny", "stream": True})
        [connection] = await _connections(running.router)
        await until(lambda: connection.buffered > 0)
        before = -1
        while before != written:  # until it stands still
            before = written
            await asyncio.sleep(0.3)
        assert connection.buffered < 2**20
        assert written < 100 * 2**20
        # Others go on, and so does this one when it reads.
        assert (await ask(running.port, {"model": "tiny"}, path="/health", method="GET")).status
        total = 0
        while total < 2000 * 65536:
            total += len(await reader.read(2**20))
        assert running.worker(worker).load <= 1
        client.leave()


async def _connections(router: Any) -> list[Any]:
    await until(lambda: router.connections)
    return list(router.connections)


async def test_a_client_that_is_idle_or_half_way_is_closed_after_its_time() -> None:
    flags = "--client-idle-timeout-secs 0.1"
    async with workers(hang) as [worker], routing(worker, flags=flags) as running:
        idle = await Client.open(running.port)
        half = await Client.open(running.port)
        half.writer.write(b"POST / HTTP/1.1\r\nhost: a\r\n")
        waiting = await Client.open(running.port)
        waiting.send(body={"model": "tiny"})
        await worker.event("request")
        assert await idle.reader.read() == b""
        assert await half.reader.read() == b""
        assert len(running.router.in_flight) == 1  # who waits for an answer is not idle
        waiting.leave()
