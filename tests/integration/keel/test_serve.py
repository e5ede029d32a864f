"""`keel serve` as its clients see it: the official client, concurrency, going away, endings."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from support.serving import Server, wait_for

pytestmark = pytest.mark.slow

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
LONG = {"prompt": "Once upon a time", "max_tokens": 2000, "ignore_eos": True, "temperature": 0}


@pytest.fixture
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def complete(http: httpx.Client, **body: Any) -> dict[str, Any]:
    answer = http.post("/v1/completions", json={"temperature": 0, **body})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def events(response: httpx.Response) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_chat_streams_what_it_answers_plainly(client: openai.OpenAI) -> None:
    plain = client.chat.completions.create(
        model="smollm2", messages=QUESTION, max_tokens=24, temperature=0
    )
    assert "Paris" in (plain.choices[0].message.content or "")
    assert plain.choices[0].finish_reason == "stop"
    stream = client.chat.completions.create(
        model="smollm2",
        messages=QUESTION,
        max_tokens=24,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == plain.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    usage, expected = chunks[-1].usage, plain.usage
    assert usage is not None
    assert expected is not None
    assert usage.total_tokens == expected.total_tokens
    assert usage.completion_tokens == expected.completion_tokens


def test_models_names_the_model_and_its_context(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert model.id == "smollm2"
    assert client.models.retrieve("smollm2").id == "smollm2"
    assert model.model_dump()["max_model_len"] == 8192
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-9")


def test_company_changes_no_answer(http: httpx.Client) -> None:
    prompts = [f"Number {n}. " + "The river runs to the sea. " * n for n in range(1, 13)]
    alone = [complete(http, prompt=one, max_tokens=16)["choices"][0]["text"] for one in prompts]
    http.post("/flush_cache")
    with ThreadPoolExecutor(len(prompts)) as pool:
        together = list(pool.map(lambda one: complete(http, prompt=one, max_tokens=16), prompts))
    assert [answer["choices"][0]["text"] for answer in together] == alone
    batch = complete(http, prompt=prompts, max_tokens=16)
    assert [choice["text"] for choice in batch["choices"]] == alone


def test_a_seed_decides_an_answer_whatever_the_company(http: httpx.Client) -> None:
    ask = {"prompt": "My favourite animal is", "max_tokens": 16, "temperature": 1.0, "seed": 7}
    alone = complete(http, **ask)["choices"][0]["text"]
    with ThreadPoolExecutor(6) as pool:
        others = [
            pool.submit(complete, http, prompt=f"{n} {n}", max_tokens=24, temperature=1.0)
            for n in range(5)
        ]
        again = complete(http, **ask)["choices"][0]["text"]
        [other.result() for other in others]
    assert again == alone
    assert complete(http, **{**ask, "seed": 8})["choices"][0]["text"] != alone
    several = complete(http, **ask, n=3)["choices"]
    assert [choice["index"] for choice in several] == [0, 1, 2]
    assert several[0]["text"] == alone
    assert len({choice["text"] for choice in several}) == 3


def test_cached_prompt_tokens_are_reported(http: httpx.Client) -> None:
    http.post("/flush_cache").raise_for_status()
    prompt = "A long preface that two requests share, word for word. " * 10
    first = complete(http, prompt=prompt, max_tokens=2)["usage"]
    second = complete(http, prompt=prompt + "And more.", max_tokens=2)["usage"]
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    assert second["prompt_tokens_details"]["cached_tokens"] >= first["prompt_tokens"] - 2


def test_stop_strings_across_tokens_and_chunks(http: httpx.Client) -> None:
    whole = complete(http, prompt="Once upon a time", max_tokens=40)["choices"][0]["text"]
    stop = whole[30:41]  # begins and ends wherever it does inside tokens
    expected = whole[: whole.index(stop)]
    ask = {"prompt": "Once upon a time", "max_tokens": 40, "stop": ["never there", stop]}
    plain = complete(http, **ask)["choices"][0]
    assert (plain["text"], plain["finish_reason"]) == (expected, "stop")
    body = {**ask, "temperature": 0, "stream": True}
    with http.stream("POST", "/v1/completions", json=body) as response:
        chunks = events(response)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == expected
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_no_chunk_has_half_a_character(http: httpx.Client) -> None:
    text = "Repeat: 😀🎉👩‍👩‍👧 日本語 é 😀🎉👩‍👩‍👧 日本語 é 😀🎉👩‍👩‍👧 日本語 é 😀🎉👩‍👩‍👧"
    body = {"prompt": text, "max_tokens": 48, "temperature": 0, "stream": True}
    with http.stream("POST", "/v1/completions", json=body) as response:
        chunks = [chunk["choices"][0]["text"] for chunk in events(response)]
    plain = complete(http, prompt=text, max_tokens=48)["choices"][0]["text"]
    assert "".join(chunks) == plain
    assert any(ord(char) > 0xFFFF for char in plain), "the model gave no emoji to look at"
    assert not any("�" in chunk for chunk in chunks[:-1])


def test_the_native_api_takes_ids_and_gives_ids(http: httpx.Client) -> None:
    params = {"max_new_tokens": 6, "temperature": 0}
    by_text = http.post(
        "/generate", json={"text": "The capital of France is", "sampling_params": params}
    ).json()
    assert by_text["text"].startswith(" Paris")
    assert by_text["meta_info"]["finish_reason"] == {"type": "length", "length": 6}
    by_ids = http.post(
        "/generate", json={"input_ids": [[504, 3575], [504, 3575, 282]], "sampling_params": params}
    ).json()
    assert [len(one["output_ids"]) for one in by_ids] == [6, 6]
    body = {"text": "The capital of France is", "sampling_params": params, "stream": True}
    with http.stream("POST", "/generate", json=body) as response:
        streamed = events(response)
    assert streamed[-1]["output_ids"] == by_text["output_ids"]
    assert streamed[-1]["text"] == by_text["text"]


def test_a_chat_whose_tokens_a_router_made_is_not_rendered_again(http: httpx.Client) -> None:
    ids = http.post("/tokenize", json={"prompt": "The capital of France is"}).json()["tokens"]
    body = {"messages": QUESTION, "input_ids": ids, "max_tokens": 8, "temperature": 0}
    answer = http.post("/v1/chat/completions", json=body).json()
    expected = complete(http, prompt=ids, max_tokens=8)
    assert answer["choices"][0]["message"]["content"] == expected["choices"][0]["text"]
    assert answer["usage"]["prompt_tokens"] == len(ids)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/generate"])
def test_a_request_for_one_of_a_pair_is_told_that_there_is_no_pair(
    path: str, http: httpx.Client
) -> None:
    asked = {"messages": QUESTION} if "chat" in path else {"prompt": "a"}
    pair = {"bootstrap_host": "10.0.0.1", "bootstrap_port": 8998, "bootstrap_room": 7}
    refused = http.post(path, json={**({"text": "a"} if path == "/generate" else asked), **pair})
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert error["param"] == "bootstrap_host"
    assert "prefill and decode apart" in error["message"]


def test_abort_by_the_beginning_of_ids(server: Server, http: httpx.Client) -> None:
    def ask(rid: str) -> dict[str, Any]:
        params = {"max_new_tokens": 3000, "ignore_eos": True}
        body = {"text": "Tell me", "rid": rid, "sampling_params": params}
        return dict(httpx.post(f"{server.url}/generate", json=body, timeout=120).json())

    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(ask, rid) for rid in ("job-1", "job-2", "other")]
        wait_for(lambda: server.state()["num_running_reqs"] == 3, "three requests run")
        http.post("/abort_request", json={"rid": "job-"}).raise_for_status()
        ends = [one.result()["meta_info"]["finish_reason"]["type"] for one in asked[:2]]
        assert ends == ["abort", "abort"]
        assert not asked[2].done()
        http.post("/abort_request", json={"abort_all": True}).raise_for_status()
        assert asked[2].result()["meta_info"]["finish_reason"]["type"] == "abort"
    assert server.is_empty()


def test_a_client_that_goes_away_takes_no_namesake_along(server: Server) -> None:
    def body(rid: str, tokens: int, stream: bool) -> dict[str, Any]:
        params = {"max_new_tokens": tokens, "ignore_eos": True}
        return {"text": "Tell me", "rid": rid, "stream": stream, "sampling_params": params}

    url = f"{server.url}/generate"
    with ThreadPoolExecutor(1) as pool:
        with httpx.stream("POST", url, json=body("job-1", 3000, True), timeout=60) as leaving:
            lines = leaving.iter_lines()
            next(lines)
            stays = pool.submit(httpx.post, url, json=body("job-10", 60, False), timeout=60)
            wait_for(lambda: server.state()["num_running_reqs"] == 2, "both run")
        answer = stays.result().json()
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 60}
    wait_for(server.is_empty, "its slots are free", 5)


def test_a_choice_that_a_stop_string_ends_leaves_the_others(http: httpx.Client) -> None:
    body = {"prompt": "Once upon a time", "n": 12, "seed": 1, "temperature": 1, "stop": [" a"]}
    many = complete(http, max_tokens=40, ignore_eos=True, **body)["choices"]
    assert len(many) == 12
    for index in (1, 10, 11):
        alone = complete(
            http, max_tokens=40, ignore_eos=True, **{**body, "n": 1, "seed": 1 + index}
        )
        assert many[index]["text"] == alone["choices"][0]["text"]
        assert many[index]["finish_reason"] == alone["choices"][0]["finish_reason"]


@pytest.mark.parametrize("rid", ["", [""], ["a", "a"], "x" * 257])
def test_ids_that_name_nothing_or_two_are_refused(http: httpx.Client, rid: Any) -> None:
    body = {"input_ids": [[5], [6]], "rid": rid, "sampling_params": {"max_new_tokens": 1}}
    answer = http.post("/generate", json=body)
    assert answer.status_code == 400, answer.text
    assert "rid" in answer.json()["error"]["message"]


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_its_request(server: Server, stream: bool) -> None:
    before = server.state()["num_aborted_requests_total"]
    body = json.dumps({**LONG, "stream": stream}).encode()
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as raw:
        raw.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body
        )
        wait_for(lambda: server.state()["num_running_reqs"] == 1, "the request runs")
    left = time.monotonic()
    wait_for(server.is_empty, "its slots are free", 5)
    assert time.monotonic() - left < 2
    assert server.state()["num_aborted_requests_total"] == before + 1


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("completions", {"prompt": "x", "max_tokens": -1}, 400, "max_tokens"),
        ("completions", {"prompt": "x", "max_tokens": "5"}, 400, "max_tokens"),
        ("completions", {"prompt": 5}, 400, "prompt"),
        ("completions", {"prompt": ""}, 400, "no tokens"),
        ("completions", {"prompt": []}, 400, "empty"),
        ("completions", {"prompt": [10**6]}, 400, "none of the model's 49152"),
        ("completions", {"prompt": "x", "n": 100_000}, 400, "n:"),
        ("completions", {"prompt": "x", "temperature": -1}, 400, "temperature"),
        ("completions", {"prompt": "x", "top_p": 0}, 400, "top_p"),
        ("completions", {"prompt": "x", "stopp": "y"}, 400, "unrecognized request argument: stopp"),
        ("completions", {"prompt": "x", "logprobs": 3}, 400, "logprobs"),
        ("completions", {"prompt": "x", "presence_penalty": 1.5}, 400, "1.5 is not served"),
        ("completions", {"prompt": "word " * 9000}, 400, "a request holds 8192"),
        ("completions", {"prompt": "x", "max_tokens": 8192}, 400, "ask for 8191 at most"),
        ("completions", {"prompt": "y" * 10_000_000}, 400, "10000000 characters"),
        ("completions", {"prompt": "x", "model": "gpt-9"}, 404, "gpt-9"),
        ("completions", {"prompt": "\ud800"}, 400, "prompt"),
        ("chat/completions", {"messages": []}, 400, "messages"),
        ("chat/completions", {"messages": [{"content": "x"}]}, 400, "role"),
        ("chat/completions", {"messages": [{"role": "user", "content": 3}]}, 400, "content"),
        ("chat/completions", {"messages": QUESTION, "tools": [{}]}, 400, "tools"),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": "a", "note": "\udfff"}]},
            200,
            "",
        ),
        ("nothing", {}, 404, "Not Found"),
    ],
)
def test_bad_requests_get_a_sentence(
    http: httpx.Client, path: str, body: dict[str, Any], status: int, says: str
) -> None:
    raw = json.dumps({"max_tokens": 2, **body})  # httpx's own encoder refuses lone surrogates
    answer = http.post(f"/v1/{path}", content=raw, headers={"content-type": "application/json"})
    assert answer.status_code == status, answer.text
    if status != 200:
        error = answer.json()["error"]
        assert says in error["message"]
        assert error["type"] in ("invalid_request_error", "not_found_error")


def test_a_body_that_is_no_json(http: httpx.Client) -> None:
    headers = {"content-type": "application/json"}
    answer = http.post("/v1/completions", content=b'{"prompt": ', headers=headers)
    assert answer.status_code == 400
    assert "not JSON" in answer.json()["error"]["message"]
    answer = http.post("/v1/completions", content=b'{"prompt": "x"}')
    assert answer.status_code == 400
    assert "content-type" in answer.json()["error"]["message"]


def test_health_metrics_version(server: Server, http: httpx.Client) -> None:
    assert http.get("/health").status_code == 200
    assert http.get("/health_generate").status_code == 200
    assert http.get("/version").json()["version"]
    complete(http, prompt="x", max_tokens=3)
    scraped = http.get("/metrics").text
    for name in ("num_running_reqs", "token_usage", "generation_tokens_total", "gen_throughput"):
        assert f'sglang:{name}{{model_name="smollm2"}}' in scraped
    assert 'sglang:time_to_first_token_seconds_count{model_name="smollm2"}' in scraped
    info = http.get("/server_info").json()
    assert info["dtype"] == "float32"
    assert info["max_total_num_tokens"] > 0


def test_sigterm_finishes_what_runs_and_takes_nothing_new(start: Callable[..., Server]) -> None:
    server = start()
    answers: list[httpx.Response] = []
    body = {**LONG, "max_tokens": 150}
    asking = threading.Thread(
        target=lambda: answers.append(
            httpx.post(f"{server.url}/v1/completions", json=body, timeout=120)
        )
    )
    asking.start()
    wait_for(lambda: server.state()["num_running_reqs"] == 1, "the request runs")
    server.process.send_signal(signal.SIGTERM)
    wait_for(lambda: "taking no new ones" in server.text(), "the drain begins")

    def refused() -> bool:
        try:
            return httpx.get(f"{server.url}/health").status_code == 503
        except httpx.TransportError:
            return True

    wait_for(refused, "new requests are refused")
    assert server.process.wait(60) == 0, server.text()
    asking.join(10)
    assert answers[0].json()["usage"]["completion_tokens"] == 150
    assert "Traceback" not in server.text()


def test_a_second_signal_ends_at_once(start: Callable[..., Server]) -> None:
    server = start()
    child = server.scheduler_pid()
    broken: list[Exception] = []

    def ask() -> None:
        try:
            httpx.post(f"{server.url}/v1/completions", json=LONG, timeout=120)
        except httpx.TransportError as error:
            broken.append(error)

    stream = threading.Thread(target=ask)
    stream.start()
    wait_for(lambda: server.state()["num_running_reqs"] == 1, "the request runs")
    server.process.send_signal(signal.SIGTERM)
    wait_for(lambda: "taking no new ones" in server.text(), "the drain begins")
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(5) == 128 + signal.SIGTERM
    stream.join(10)
    assert broken
    wait_for(lambda: not os.path.exists(f"/proc/{child}"), "the scheduler is gone", 5)


def test_a_killed_scheduler_ends_the_server(start: Callable[..., Server]) -> None:
    server = start()
    answers: list[httpx.Response] = []
    asking = threading.Thread(
        target=lambda: answers.append(
            httpx.post(f"{server.url}/v1/completions", json=LONG, timeout=60)
        )
    )
    asking.start()
    wait_for(lambda: server.state()["num_running_reqs"] == 1, "the request runs")
    os.kill(server.scheduler_pid(), signal.SIGKILL)
    assert server.process.wait(10) == 5
    asking.join(10)
    assert answers[0].status_code == 500
    assert "scheduler process" in answers[0].json()["error"]["message"]
    assert "ended with signal SIGKILL" in server.text()
    assert "Traceback" not in server.text()


def test_a_killed_server_takes_its_scheduler_along(start: Callable[..., Server]) -> None:
    server = start()
    child = server.scheduler_pid()
    server.process.kill()
    server.process.wait()
    wait_for(lambda: not os.path.exists(f"/proc/{child}"), "the scheduler is gone", 5)


def test_loading_is_not_healthy_and_says_so(start: Callable[..., Server]) -> None:
    server = start(wait=False)
    server.wait_listening()
    answer = httpx.get(f"{server.url}/health")
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    server.wait_ready()


def test_a_key_is_asked_for(start: Callable[..., Server]) -> None:
    server = start("--api-key", "s3cret")
    ask = {"prompt": "x", "max_tokens": 1}
    assert httpx.post(f"{server.url}/v1/completions", json=ask).status_code == 401
    wrong = {"authorization": "Bearer no"}
    assert httpx.get(f"{server.url}/v1/models", headers=wrong).status_code == 401
    right = openai.OpenAI(base_url=f"{server.url}/v1", api_key="s3cret")
    assert right.completions.create(model="default", prompt="x", max_tokens=1).choices
    assert (
        "s3cret"
        not in httpx.get(
            f"{server.url}/server_info", headers={"authorization": "Bearer s3cret"}
        ).text
    )


def test_a_small_pool_and_many_requests(start: Callable[..., Server]) -> None:
    """More than the pool holds at once: requests wait, give up memory, and all end right."""
    flags = ("--max-total-tokens", "160", "--max-running-requests", "8")
    server = start(*flags, "--chunked-prefill-size", "32")
    prompts = [f"Story {n}: " + "the old man and the sea " * (n % 4 * 3) for n in range(12)]

    def ask(prompt: str) -> str:
        body = {"prompt": prompt, "max_tokens": 48, "temperature": 0, "ignore_eos": True}
        answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=300)
        return str(answer.json()["choices"][0]["text"])

    with ThreadPoolExecutor(12) as pool:
        together = list(pool.map(ask, prompts))
    assert [ask(prompt) for prompt in prompts[::4]] == together[::4]
    assert server.state()["num_retractions_total"] > 0, "the pool was never full"
    assert server.is_empty()


def test_a_full_queue_is_503(start: Callable[..., Server]) -> None:
    server = start("--max-running-requests", "1", "--max-queued-requests", "1")
    body = {**LONG, "max_tokens": 60}

    def ask() -> int:
        return httpx.post(f"{server.url}/v1/completions", json=body, timeout=120).status_code

    with ThreadPoolExecutor(4) as pool:
        statuses = sorted(pool.map(lambda _: ask(), range(4)))
    assert statuses == [200, 200, 503, 503]


def test_bad_input_is_one_sentence_and_an_exit_code(
    start: Callable[..., Server], tmp_path: Path, model_path: Path
) -> None:
    whole = model_path.read_bytes()
    cut, early, other = tmp_path / "cut.gguf", tmp_path / "early.gguf", tmp_path / "other.gguf"
    cut.write_bytes(whole[: len(whole) // 2])
    early.write_bytes(whole[:1000])
    other.write_bytes(b"PK\x03\x04" + whole[:1000])
    strange = tmp_path / "strange.gguf"
    strange.write_bytes(whole.replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0mamba", 1))
    folder = tmp_path / "folder"
    folder.mkdir()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        cases = [
            (["--port", port], model_path, 4, f"127.0.0.1:{port} is in use"),
            ([], tmp_path / "missing.gguf", 3, "there is no model at"),
            ([], cut, 3, "truncated or damaged"),
            ([], early, 3, "truncated or damaged"),
            ([], other, 3, "is not a GGUF file"),
            ([], strange, 3, "'mamba'"),
            ([], folder, 3, "has no config.json"),
            (["--device", "cuda"], model_path, 2, "no CUDA device"),
            (["--chat-template", str(tmp_path / "no")], model_path, 2, "--chat-template"),
            (["--prot", "1"], model_path, 2, "--prot"),
        ]
        for flags, model, code, says in cases:
            server = start(*flags, wait=False, model=model)
            assert server.process.wait(60) == code, (says, server.text())
            text = server.text()
            assert says in text
            assert "fix: " in text
            assert "Traceback" not in text
