"""What the router adds to a request: sampling defaults, token ids."""

from __future__ import annotations

import json
from typing import Any

import pytest

from keel.errors import KeelError
from keel.router.tokenisation import Tokenisation
from support.routing import ask, normal, routing, until, workers


async def test_defaults_come_before_the_id_and_win_over_nulls() -> None:
    flags = '--sampling-defaults {"temperature":1.0,"top_p":0.95}'
    async with workers(normal) as [worker], routing(worker, flags=flags) as running:
        body = b'{"temperature": null, "model":"tiny", "top_p":0.95}'
        assert (await ask(running.port, body)).status == 200
        raw = worker.seen[0].raw
        assert raw.startswith(body[:-1] + b',"temperature":1.0,"rid":"')
        assert json.loads(raw)["temperature"] == 1.0


async def test_a_request_against_the_contract_is_refused_and_counted() -> None:
    flags = '--sampling-defaults {"temperature":1.0}'
    async with workers(normal) as [worker], routing(worker, flags=flags) as running:
        answer = await ask(running.port, {"model": "tiny", "temperature": 0.1})
        assert answer.status == 400
        assert answer.headers["x-router-error-code"] == "sampling_contract_violation"
        assert worker.seen == []
        metrics = (await ask(running.port, path="/metrics", method="GET")).body.decode()
        assert 'keel_router_sampling_violations_total{field="temperature"} 1.0' in metrics


async def test_the_contract_allows_what_it_is_told_to_allow() -> None:
    flags = '--sampling-defaults {"temperature":1.0} --sampling-conflict allow'
    async with workers(normal) as [worker], routing(worker, flags=flags) as running:
        await ask(running.port, {"model": "tiny", "temperature": 0.1})
        assert worker.seen[0].json["temperature"] == 0.1


def letters(messages: list[dict[str, str]]) -> list[int]:
    """A renderer of one token per letter, which does not take system messages."""
    if any(message["role"] == "system" for message in messages):
        raise KeelError("no system messages")
    return [ord(letter) for message in messages for letter in message["content"]]


def tokenising(running: Any, *not_forwarded: str) -> None:
    router = running.router
    router.tokenisation = Tokenisation(letters, not_forwarded, router.metrics.rendered)


def renders(running: Any) -> dict[str, int]:
    counters = running.router.metrics._counters
    return {what: n for (name, what), n in counters.items() if name == "renders"}


HELLO = [{"role": "user", "content": "hello"}]


async def test_the_ids_of_a_text_chat_go_along_and_its_messages_stay() -> None:
    async with workers(normal) as [worker], routing(worker) as running:
        tokenising(running)
        assert (await ask(running.port, {"model": "tiny", "messages": HELLO})).status == 200
        seen = worker.seen[0].json
        assert seen["input_ids"] == [ord(letter) for letter in "hello"]
        assert seen["messages"] == HELLO
        assert len(seen["rid"]) == 32
        assert renders(running) == {"forwarded": 1}


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]},
        {"messages": HELLO, "tools": [{"type": "function"}]},
        {"messages": HELLO, "chat_template_kwargs": {"enable_thinking": False}},
        {"messages": [{"role": "assistant", "content": None}]},
        {"messages": [{"role": "user", "content": "a", "name": "b"}]},
    ],
)
async def test_a_chat_that_is_more_than_text_is_left_to_its_engine(fields: Any) -> None:
    async with workers(normal) as [worker], routing(worker) as running:
        tokenising(running)
        assert (await ask(running.port, {"model": "tiny", **fields})).status == 200
        assert "input_ids" not in worker.seen[0].json
        assert renders(running) == {"bypassed": 1}


async def test_a_template_that_fails_leaves_the_chat_to_its_engine() -> None:
    async with workers(normal) as [worker], routing(worker) as running:
        tokenising(running)
        messages = [{"role": "system", "content": "a"}]
        assert (await ask(running.port, {"model": "tiny", "messages": messages})).status == 200
        assert "input_ids" not in worker.seen[0].json
        assert renders(running) == {"failed": 1}


async def test_a_model_can_be_left_to_tokenise_for_itself() -> None:
    async with workers(normal) as [worker], routing(worker) as running:
        tokenising(running, "tiny")
        await ask(running.port, {"model": "tiny", "messages": HELLO})
        assert "input_ids" not in worker.seen[0].json
        assert renders(running) == {"routing_only": 1}


async def test_ids_of_the_caller_pass_untouched_and_route() -> None:
    async with (
        workers(normal, normal) as fakes,
        routing(*fakes, flags="--policy cache_aware") as running,
    ):
        tokenising(running)
        ids = list(range(1000))
        for tail in range(6):
            await ask(running.port, {"model": "tiny", "messages": HELLO, "input_ids": [*ids, tail]})
        await until(lambda: sum(len(fake.seen) for fake in fakes) == 6)
        assert sorted(len(fake.seen) for fake in fakes) == [0, 6]
        [worker] = [fake for fake in fakes if fake.seen]
        assert worker.seen[0].json["input_ids"] == [*ids, 0]
        assert renders(running) == {"bypassed": 6}


async def test_a_client_that_leaves_while_its_chat_is_tokenised_reaches_no_engine() -> None:
    import threading

    from support.routing import Client

    gate = threading.Event()

    def slow(messages: list[dict[str, str]]) -> list[int]:
        gate.wait(5)
        return [1]

    async with workers(normal) as [worker], routing(worker) as running:
        router = running.router
        router.tokenisation = Tokenisation(slow, (), router.metrics.rendered)
        client = await Client.open(running.port)
        client.send(body={"model": "tiny", "messages": HELLO})
        await until(lambda: len(router.in_flight) == 1)
        client.leave()
        await until(lambda: not router.in_flight)
        gate.set()
        assert (await ask(running.port, {"model": "tiny", "messages": HELLO})).status == 200
        assert len(worker.seen) == 1
