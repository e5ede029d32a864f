"""Anthropic's own client, and text to tokens and back."""

from __future__ import annotations

import anthropic
import httpx
import pytest

from support.serving import Server

# Not an argument of newer clients.
GREEDY = {"temperature": 0}
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture
def client(server: Server) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)


def greedy(http: httpx.Client, **body: object) -> dict[str, object]:
    asked = {"messages": QUESTION, "max_tokens": 16, "temperature": 0, **body}
    return dict(http.post("/v1/chat/completions", json=asked).json())


def test_a_message_is_the_chat_that_openai_clients_get(
    client: anthropic.Anthropic, http: httpx.Client
) -> None:
    answer = client.messages.create(
        model="smollm2", max_tokens=16, messages=QUESTION, extra_body=GREEDY
    )
    expected = greedy(http)
    choice, usage = expected["choices"][0], expected["usage"]  # type: ignore[index]
    assert answer.content[0].text == choice["message"]["content"]
    assert "Paris" in answer.content[0].text
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (
        usage["prompt_tokens"],
        usage["completion_tokens"],
    )
    assert answer.stop_reason == "end_turn"
    counted = client.messages.count_tokens(model="smollm2", messages=QUESTION)
    assert counted.input_tokens == usage["prompt_tokens"]


def test_a_stream_adds_up_to_the_whole(client: anthropic.Anthropic) -> None:
    asked = {"model": "smollm2", "max_tokens": 12, "messages": QUESTION, "extra_body": GREEDY}
    asked |= {"system": [{"type": "text", "text": "You are a poet."}]}
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert (final.stop_reason, final.usage) == (whole.stop_reason, whole.usage)
    assert whole.stop_reason == "max_tokens"
    assert whole.usage.output_tokens == 12


def test_a_stop_sequence_is_named(client: anthropic.Anthropic) -> None:
    answer = client.messages.create(
        model="smollm2",
        max_tokens=32,
        extra_body=GREEDY,
        messages=QUESTION,
        stop_sequences=["never said", "Paris"],
    )
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "Paris")
    assert "Paris" not in answer.content[0].text


def test_refusals_are_anthropics(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="does not exist"):
        client.messages.create(model="other", max_tokens=1, messages=QUESTION)
    with pytest.raises(anthropic.BadRequestError) as refused:
        client.messages.create(model="smollm2", max_tokens=0, messages=QUESTION)
    assert refused.value.body["type"] == "error"  # type: ignore[index]
    assert "max_tokens" in str(refused.value)
    source = {"type": "base64", "media_type": "image/png", "data": ""}
    picture = [{"role": "user", "content": [{"type": "image", "source": source}]}]
    with pytest.raises(anthropic.BadRequestError, match="content"):
        client.messages.create(model="smollm2", max_tokens=1, messages=picture)


@pytest.mark.slow
def test_the_key_may_be_anthropics_header(start: object) -> None:
    server = start("--api-key", "s3cret")  # type: ignore[operator]
    for key, status in (("s3cret", 200), ("wrong", 401)):
        client = anthropic.Anthropic(base_url=server.url, api_key=key, max_retries=0)
        asked = {"model": "default", "max_tokens": 1, "messages": QUESTION}
        if status == 200:
            assert client.messages.create(**asked).usage.output_tokens == 1
        else:
            with pytest.raises(anthropic.AuthenticationError):
                client.messages.create(**asked)


def test_text_to_tokens_and_back(http: httpx.Client) -> None:
    text = "Grüße, 世界! <|im_start|>"
    one = http.post("/tokenize", json={"prompt": text}).json()
    assert one["count"] == len(one["tokens"])
    both = http.post("/v1/tokenize", json={"prompt": [text, "a"]}).json()
    assert both["tokens"][0] == one["tokens"]
    assert both["count"] == [one["count"], 1]
    shown = http.post("/detokenize", json={"tokens": one["tokens"], "skip_special_tokens": False})
    assert shown.json() == {"text": text}
    assert http.post("/detokenize", json={"tokens": [[], one["tokens"]]}).json()["text"] == [
        "",
        "Grüße, 世界! ",
    ]
    usage = http.post("/v1/completions", json={"prompt": one["tokens"], "max_tokens": 1}).json()
    assert usage["usage"]["prompt_tokens"] == one["count"]


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/tokenize", {"prompt": 3}, "prompt"),
        ("/tokenize", {"prompt": "\ud800"}, "prompt"),
        ("/detokenize", {"tokens": [10**6]}, "1000000"),
        ("/detokenize", {"tokens": ["a"]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
    ],
)
def test_what_is_no_text_and_no_token_is_refused(
    path: str, body: dict[str, object], named: str, http: httpx.Client
) -> None:
    import json

    answer = http.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
    assert answer.status_code == 400, answer.text
    assert named in answer.json()["error"]["message"]
