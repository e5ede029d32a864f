"""Many mixed requests with cancellations of every kind: the pool is whole and memory flat after."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from support import tiny as tiny_models
from support.serving import Server, wait_for

pytestmark = pytest.mark.slow

REQUESTS = 600


@pytest.fixture(scope="module")
def server(
    environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A tiny model with a pool that is too small; what is tried here is the engine around it."""
    folder = tiny_models.write(tmp_path_factory.mktemp("tiny"))
    flags = [
        "--max-total-tokens",
        "1500",
        "--chunked-prefill-size",
        "128",
        "--log-level",
        "warning",
    ]
    flags += ["--log-level", "info", "--max-running-requests", "16"]
    log = tmp_path_factory.mktemp("log") / "log"
    server = Server.launch(str(folder), flags, environment, log)
    try:
        server.wait_ready()
        yield server
    finally:
        server.end()


def memory(server: Server) -> int:
    """Resident bytes of both processes."""
    total = 0
    for pid in (server.process.pid, server.scheduler_pid()):
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        total += pages * 4096
    return total


def body(rng: random.Random) -> dict[str, Any]:
    shared = "the thin sand and the inland sea " * rng.choice([0, 0, 1, 3])
    return {
        "prompt": shared + "".join(rng.choices("abc the\n", k=rng.randrange(1, 120))),
        "max_tokens": rng.randrange(1, 60),
        "temperature": rng.choice([0.0, 1.0]),
        "stream": rng.random() < 0.5,
        "n": rng.choice([1, 1, 1, 3]),
        "stop": rng.choice([None, "th", ["zz", " a"]]),
    }


async def one(client: httpx.AsyncClient, rng: random.Random, ends: dict[str, int]) -> None:
    ask = body(rng)
    how = rng.choice(["whole", "whole", "leave", "abort", "cancel"])
    rid = f"soak-{rng.getrandbits(60)}"
    try:
        if how == "abort":
            task = asyncio.create_task(
                client.post("/v1/completions", json={**ask, "stream": False, "rid": rid})
            )
            await asyncio.sleep(rng.random() * 0.2)
            await client.post("/abort_request", json={"rid": rid})
            assert (await task).status_code == 200
        elif how == "cancel":
            async with asyncio.timeout(rng.random() * 0.3):
                await client.post("/v1/completions", json={**ask, "stream": False})
        elif ask["stream"]:
            async with client.stream("POST", "/v1/completions", json=ask) as response:
                assert response.status_code == 200
                left = rng.randrange(1, 20) if how == "leave" else 10**9
                async for _ in response.aiter_lines():
                    left -= 1
                    if left == 0:
                        break
        else:
            answer = await client.post("/v1/completions", json=ask)
            assert answer.status_code == 200, answer.text
            assert len(answer.json()["choices"]) == ask["n"]
        ends[how] = ends.get(how, 0) + 1
    except TimeoutError:
        ends["cancelled"] = ends.get("cancelled", 0) + 1


async def soak(url: str, count: int, seed: int) -> dict[str, int]:
    rng, ends = random.Random(seed), dict[str, int]()
    limits = httpx.Limits(max_connections=64)
    gate = asyncio.Semaphore(40)
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=limits) as client:

        async def gated() -> None:
            async with gate:
                await one(client, random.Random(rng.random()), ends)

        await asyncio.gather(*(gated() for _ in range(count)))
    return ends


def test_the_pool_is_whole_and_memory_flat_after_everything(server: Server) -> None:
    # oneDNN keeps what it compiled for each shape, up to a limit: first all shapes are met.
    asyncio.run(soak(server.url, 2 * REQUESTS, 1))
    wait_for(server.is_empty, "the warm-up's slots are free")
    before = memory(server)
    ends = asyncio.run(soak(server.url, REQUESTS, 2))
    wait_for(server.is_empty, "all slots are free")
    assert min(ends[how] for how in ("whole", "leave", "abort", "cancelled")) > 10, ends
    state = server.state()
    assert state["num_aborted_requests_total"] > 50
    # Flat: allocators keep some, a leak of one context a request would be 100 MB.
    assert memory(server) - before < 40e6
    # Becoming idle checks that every slot is free or cached, and ends the scheduler otherwise.
    assert httpx.get(f"{server.url}/health_generate", timeout=30).status_code == 200
    httpx.post(f"{server.url}/flush_cache").raise_for_status()
    assert server.state()["num_cached_tokens"] == 0
    assert "Traceback" not in server.text()


def test_a_thousand_idle_connections_and_a_slow_reader(server: Server) -> None:
    async def scene() -> None:
        host, port = server.url.removeprefix("http://").split(":")
        idle = [await asyncio.open_connection(host, int(port)) for _ in range(1000)]
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            ask = {"prompt": "the", "max_tokens": 200, "stream": True, "n": 8, "ignore_eos": True}
            async with client.stream("POST", "/v1/completions", json=ask) as slow:
                quick = {"prompt": "an", "max_tokens": 3}
                for _ in range(5):  # answered while the other one is not read
                    assert (await client.post("/v1/completions", json=quick)).status_code == 200
                lines = [line async for line in slow.aiter_lines() if line]
            assert lines[-1] == "data: [DONE]"
        for _, writer in idle:
            writer.close()

    asyncio.run(scene())
    wait_for(server.is_empty, "all slots are free")


def test_a_folder_is_served_with_its_template_and_tokenizer(server: Server) -> None:
    ask = {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "the sand"}]}],
        "max_tokens": 4,
        "temperature": 0,
        "seed": 3,
    }
    first = httpx.post(f"{server.url}/v1/chat/completions", json=ask, timeout=60).json()
    again = httpx.post(f"{server.url}/v1/chat/completions", json=ask, timeout=60).json()
    assert first["choices"] == again["choices"]
    picture = [{"type": "image_url", "image_url": {"url": "x"}}]
    refused = httpx.post(
        f"{server.url}/v1/chat/completions",
        json={"messages": [{"role": "user", "content": picture}]},
    )
    assert refused.status_code == 400
