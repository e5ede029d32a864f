"""Greedy tokens of SmolLM2 against Hugging Face transformers in float32."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from support import reference
from support.serving import Server

pytestmark = pytest.mark.slow

NEW = 32
PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Q: What is 17 + 25?\nA:",
    "In 1969, the first humans",
    "The quick brown fox jumps over the lazy dog. " * 30,
    "Écoute, les étoiles 😀",
]
CHATS = ["Tell me a joke about trains.", "List three primary colours.", "Who wrote Hamlet?"]


def test_greedy_tokens_equal_transformers_all_at_once(server: Server, model_path: Path) -> None:
    _, tokenizer = reference.load(model_path)
    turns = [[{"role": "user", "content": chat}] for chat in CHATS]
    texts = PROMPTS + [
        tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)
        for turn in turns
    ]
    prompts = [tokenizer(text, add_special_tokens=False).input_ids for text in texts]

    def ask(text: str) -> dict[str, Any]:
        body = {"text": text, "sampling_params": {"max_new_tokens": NEW, "temperature": 0}}
        return dict(httpx.post(f"{server.url}/generate", json=body, timeout=300).json())

    with ThreadPoolExecutor(len(texts)) as pool:  # one running batch, lengths from 5 to 300
        answers = list(pool.map(ask, texts))
    for text, ids, answer in zip(texts, prompts, answers, strict=True):
        assert answer["meta_info"]["prompt_tokens"] == len(ids), text
        assert answer["output_ids"] == reference.greedy(model_path, ids, NEW), text


def test_chat_equals_the_template_of_transformers(server: Server, model_path: Path) -> None:
    _, tokenizer = reference.load(model_path)
    for chat in CHATS:
        turn = [{"role": "user", "content": chat}]
        ids = reference.chat_ids(model_path, turn)
        body = {"messages": turn, "max_tokens": NEW, "temperature": 0}
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=300).json()
        expected = reference.greedy(model_path, ids, NEW)
        text = tokenizer.decode(expected, skip_special_tokens=True)
        assert answer["choices"][0]["message"]["content"] == text
        assert answer["usage"]["prompt_tokens"] == len(ids)
