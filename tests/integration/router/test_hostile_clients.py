"""Clients that mean harm, or speak something else: each is refused or ignored, and costs nobody."""

from __future__ import annotations

import asyncio

import pytest

from support.routing import (
    ANSWER,
    CHAT,
    Client,
    ask,
    fixed,
    hang,
    normal,
    routing,
    soon,
    until,
    workers,
)

BODY = b'{"model":"tiny"}'
LINE = f"POST {CHAT} HTTP/1.1\r\nhost: router\r\n".encode()
CHUNKED = LINE + b"transfer-encoding: chunked\r\n\r\n"
SIZED = b"content-length: %d\r\n" % len(BODY)
HIDDEN = b"GET /hidden HTTP/1.1\r\nhost: router\r\n\r\n"

# Two readers could disagree about where each of these ends; the router reads none of them.
AMBIGUOUS = {
    "length and chunks": LINE + SIZED + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "chunks and length": LINE + b"transfer-encoding: chunked\r\n" + SIZED + b"\r\n0\r\n\r\n",
    "two lengths": LINE + SIZED + b"content-length: 0\r\n\r\n" + BODY,
    "a list of lengths": LINE + b"content-length: 16, 0\r\n\r\n" + BODY,
    "a signed length": LINE + b"content-length: +16\r\n\r\n" + BODY,
    "a length in hex": LINE + b"content-length: 0x10\r\n\r\n" + BODY,
    "a length past 64 bits": LINE + b"content-length: 18446744073709551632\r\n\r\n" + BODY,
    "an unknown coding": LINE + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "chunked not last": LINE + b"transfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n" + HIDDEN,
    "chunked twice": LINE
    + b"transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n0\r\n\r\n",
    "space before a colon": LINE + b"content-length : 16\r\n\r\n" + BODY,
    "a folded header": LINE + b"x-a: b\r\n content-length: 16\r\n\r\n" + BODY,
    "a bare CR": LINE + b"x-a: b\rcontent-length: 16\r\n\r\n" + BODY,
    "a zero byte": LINE + b"x-a: b\x00c\r\n\r\n",
    "a signed chunk": CHUNKED + b"-1\r\n" + BODY,
    "a chunk in 0x": CHUNKED + b"0x10\r\n" + BODY + b"\r\n0\r\n\r\n",
    "a chunk past 64 bits": CHUNKED + b"10000000000000010\r\n" + BODY + b"\r\n0\r\n\r\n",
    "a chunk longer than said": CHUNKED + b"f\r\n" + BODY + b"\r\n0\r\n\r\n",
    "a chunk without size": CHUNKED + b"\r\n" + BODY,
}


@pytest.mark.parametrize("name", AMBIGUOUS)
async def test_a_request_that_could_end_in_two_places_is_refused(name: str) -> None:
    async with workers(normal) as [worker], routing(worker) as running:
        client = await Client.open(running.port)
        client.writer.write(AMBIGUOUS[name])
        answer = await client.reply()
        assert (answer.status, answer.headers["connection"]) == (400, "close")
        assert await soon(client.reader.read()) == b""  # nothing else is answered here
        assert worker.seen == []
        assert (await ask(running.port, {"model": "tiny"})).body == ANSWER


async def test_trailers_are_not_taken_for_headers() -> None:
    async with workers(normal) as [worker], routing(worker) as running:
        client = await Client.open(running.port)
        client.writer.write(
            CHUNKED
            + b"%x\r\n%b\r\n0\r\n" % (len(BODY), BODY)
            + b"authorization: Bearer stolen\r\nx-sgl-routing-key: k\r\n\r\n"
        )
        assert (await client.reply()).status == 200
        assert "authorization" not in worker.seen[0].headers
        assert "x-sgl-routing-key" not in worker.seen[0].headers


async def test_trailers_without_end_are_refused() -> None:
    async with workers(normal) as [worker], routing(worker) as running:
        client = await Client.open(running.port)
        client.writer.write(CHUNKED + b"0\r\n" + b"x-a: %b\r\n" % (b"y" * 1000) * 100)
        assert (await client.reply()).status == 431
        assert worker.seen == []


@pytest.mark.parametrize(
    "head",
    [
        LINE + b"x-a: " + b"y" * 100_000 + b"\r\n\r\n",
        LINE + b"x: y\r\n" * 50_000 + b"\r\n",
        b"GET /" + b"y" * 100_000 + b" HTTP/1.1\r\n\r\n",
        LINE + b"y" * 100_000 + b": z\r\n\r\n",
    ],
    ids=["a long value", "many headers", "a long target", "a long name"],
)
async def test_a_head_that_grows_is_refused_and_not_kept(head: bytes) -> None:
    async with workers(normal) as [worker], routing(worker) as running:
        client = await Client.open(running.port)
        client.writer.write(head)
        assert (await client.reply()).status == 431
        assert worker.seen == []


async def test_a_head_that_drips_is_cut_off_however_often_a_byte_comes() -> None:
    flags = "--client-idle-timeout-secs 0.2"
    async with workers(normal) as [worker], routing(worker, flags=flags) as running:
        client = await Client.open(running.port)
        for byte in LINE * 10:
            client.writer.write(bytes((byte,)))
            await asyncio.sleep(0.02)
            if client.reader.at_eof() or not running.router.connections:
                break
        assert not running.router.connections
        assert worker.seen == []


async def test_a_body_that_drips_is_refused_when_its_request_is_stale() -> None:
    flags = "--client-idle-timeout-secs 0.5 --stale-request-timeout-secs 0.3"
    async with workers(normal) as [worker], routing(worker, flags=flags) as running:
        client = await Client.open(running.port)
        client.writer.write(LINE + b"content-length: 1000000\r\n\r\n")
        answer = asyncio.ensure_future(client.reply())
        while not answer.done():
            client.writer.write(b" ")
            await asyncio.sleep(0.02)
        assert (answer.result().status, answer.result().error_code) == (408, "request_incomplete")
        assert worker.seen == []


async def test_more_sent_ahead_than_is_held_ends_the_connection_and_aborts() -> None:
    async with workers(hang) as [worker], routing(worker) as running:
        client = await Client.open(running.port)
        client.send(body=BODY)
        seen = await worker.event("request")
        client.writer.write(HIDDEN * 100)
        assert await worker.event("abort") == {"rid": seen.json["rid"], "abort_all": False}
        await until(lambda: not running.router.connections)
        assert len(worker.seen) == 1


async def test_http2_without_tls_is_refused_in_http1() -> None:
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
    async with workers(normal) as [worker], routing(worker) as running:
        client = await Client.open(running.port)
        client.writer.write(preface)
        assert (await client.reply()).status == 400
        assert await soon(client.reader.read()) == b""
        assert worker.seen == []


UPGRADE = (
    b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\n"
    b"http2-settings: AAMAAABkAAQAoAAAAAIA\r\n"
)


async def test_an_offer_of_another_protocol_is_declined_and_the_request_served() -> None:
    """Java's HttpClient offers h2c with every first request to an http URL, curl --http2 too."""
    async with workers(normal) as [worker], routing(worker) as running:
        client = await Client.open(running.port)
        client.writer.write(LINE + UPGRADE + SIZED + b"\r\n" + BODY)
        answer = await client.reply()
        assert (answer.status, answer.body) == (200, ANSWER)
        assert "upgrade" not in worker.seen[0].headers
        client.writer.write(LINE + UPGRADE + SIZED + b"\r\n" + BODY + LINE + SIZED + b"\r\n" + BODY)
        for _ in range(2):
            assert (await client.reply()).body == ANSWER
        client.writer.write(b"GET /v1/models HTTP/1.1\r\nhost: router\r\n" + UPGRADE + b"\r\n")
        assert (await client.reply()).json["data"][0]["id"] == "tiny"
        websocket = (
            b"GET /ws HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
        )
        client.writer.write(websocket)
        assert (await client.reply()).status == 200
        assert "upgrade" not in worker.seen[-1].headers


async def test_the_router_is_no_tunnel() -> None:
    async with workers(normal) as [worker], routing(worker) as running:
        client = await Client.open(running.port)
        client.writer.write(b"CONNECT 10.0.0.1:22 HTTP/1.1\r\nhost: 10.0.0.1\r\n\r\nSSH-2.0-x\r\n")
        assert (await client.reply()).status == 405
        assert await soon(client.reader.read()) == b""
        assert worker.seen == []


@pytest.mark.parametrize(
    "body",
    [b'{"model":"ti\xffny"}', b'\xef\xbb\xbf{"model":"tiny"}', '{"model":"tiny"}'.encode("utf-16")],
)
async def test_a_body_that_is_not_utf8_where_the_router_reads_is_a_clean_answer(
    body: bytes,
) -> None:
    async with workers(fixed(200, ANSWER)) as [worker], routing(worker) as running:
        answer = await ask(running.port, body)
        assert answer.status in (200, 400)
        if answer.status == 400:
            assert answer.error_code == "invalid_request"
            assert worker.seen == []
        assert (await ask(running.port, {"model": "tiny"})).body == ANSWER
