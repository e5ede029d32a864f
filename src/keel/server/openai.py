"""OpenAI's API: models, completions, chat completions."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from keel.server.answers import (
    Ask,
    EventStream,
    Piece,
    Whole,
    choices_of,
    merged,
    until_disconnect,
    wholes,
)
from keel.server.errors import ApiError, error_body
from keel.server.prepare import (
    check_length,
    check_model,
    check_serving,
    encode,
    encode_chat,
    make_rid,
    most_tokens,
    sampling_of,
    stop_strings,
)
from keel.server.protocol import ChatCompletionRequest, CompletionRequest, _Sampling
from keel.server.state import ServerState

_json = msgspec.json.Encoder()
DONE = b"data: [DONE]\n\n"


def event(value: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + _json.encode(value) + b"\n\n"


def openai_routes(state: ServerState) -> APIRouter:
    """The routes below `/v1`."""
    routes = APIRouter(prefix="/v1", tags=["OpenAI"])

    @routes.get("/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [_model_card(state)]}

    @routes.get("/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        check_model(state, name)
        return _model_card(state)

    @routes.post("/completions")
    async def completions(body: CompletionRequest, request: Request) -> Response:
        check_serving(state)
        check_model(state, body.model)
        prompts = await _prompts(state, body)
        for ids in prompts:
            check_length(state, ids, body.max_tokens, "prompt")
        asks = _asks(body, prompts, body.max_tokens)
        echo = [""] * len(asks)
        if body.echo:
            texts = [state.tokenizer.decode(ids) for ids in prompts]
            echo = [text for text in texts for _ in range(body.n)]

        def choice(index: int, text: str, reason: str | None) -> dict[str, Any]:
            return {"index": index, "text": text, "logprobs": None, "finish_reason": reason}

        def delta(piece: Piece, first: bool) -> list[dict[str, Any]]:
            text = echo[piece.index] + piece.text if first else piece.text
            reason = piece.finish.kind if piece.finish else None
            return [choice(piece.index, text, reason)] if text or reason else []

        def whole(index: int, answer: Whole) -> dict[str, Any]:
            return choice(index, echo[index] + answer.text, answer.finish.kind)

        head = _head(state, asks[0].rid, "cmpl", "text_completion", "text_completion")
        return await _respond(state, request, body, asks, head, delta, whole)

    @routes.post("/chat/completions")
    async def chat_completions(body: ChatCompletionRequest, request: Request) -> Response:
        check_serving(state)
        check_model(state, body.model)
        new = body.max_completion_tokens or body.max_tokens
        ids = await encode_chat(state, body)
        check_length(state, ids, new, "messages")
        asks = _asks(body, [ids], new)

        def choice(
            index: int, key: str, content: dict[str, Any], reason: str | None
        ) -> dict[str, Any]:
            return {"index": index, key: content, "logprobs": None, "finish_reason": reason}

        def delta(piece: Piece, first: bool) -> list[dict[str, Any]]:
            found = []
            if first:
                opening = {"role": "assistant", "content": ""}
                found.append(choice(piece.index, "delta", opening, None))
            reason = piece.finish.kind if piece.finish else None
            if piece.text:
                found.append(choice(piece.index, "delta", {"content": piece.text}, None))
            if reason:
                found.append(choice(piece.index, "delta", {}, reason))
            return found

        def whole(index: int, answer: Whole) -> dict[str, Any]:
            message = {"role": "assistant", "content": answer.text, "refusal": None}
            return choice(index, "message", message, answer.finish.kind)

        head = _head(state, asks[0].rid, "chatcmpl", "chat.completion", "chat.completion.chunk")
        return await _respond(state, request, body, asks, head, delta, whole)

    return routes


def _model_card(state: ServerState) -> dict[str, Any]:
    return {
        "id": state.args.model_name,
        "object": "model",
        "created": int(state.started),
        "owned_by": "keel",
        "root": state.args.model_path,
        "max_model_len": most_tokens(state) if state.client.ready else None,
    }


async def _prompts(state: ServerState, body: CompletionRequest) -> list[list[int]]:
    prompt = body.prompt
    if isinstance(prompt, str):
        return [await encode(state, prompt, "prompt")]
    if not prompt:
        raise ApiError("prompt is empty", param="prompt")
    if isinstance(prompt[0], int):
        return [list(prompt)]
    found = []
    for one in prompt:
        found.append(await encode(state, one, "prompt") if isinstance(one, str) else list(one))
    return found


def _asks(body: _Sampling, prompts: Sequence[list[int]], new: int | None) -> list[Ask]:
    """`n` answers for each prompt, in the order of OpenAI's choices."""
    rid = make_rid(body.rid)
    found: list[Ask] = []
    for index, ids in enumerate(prompts):
        ask = Ask(
            rid=rid if len(prompts) == 1 else f"{rid}-{index}",
            prompt_ids=ids,
            params=sampling_of(body, new),
            stop=stop_strings(body.stop),
            keep_stop=body.no_stop_trim,
            skip_special_tokens=body.skip_special_tokens,
        )
        found += choices_of(ask, body.n)
    return found


def _head(state: ServerState, rid: str, prefix: str, whole: str, chunk: str) -> Callable[..., Any]:
    """What all objects of one response begin with."""
    common = {
        "id": rid if rid.startswith(prefix) else f"{prefix}-{rid}",
        "created": int(time.time()),
        "model": state.args.model_name,
    }

    def make(streamed: bool, choices: list[dict[str, Any]], **rest: Any) -> dict[str, Any]:
        return {**common, "object": chunk if streamed else whole, "choices": choices, **rest}

    return make


def _usage(state: ServerState, asks: Sequence[Ask], new: int, cached: int) -> dict[str, Any]:
    # A prompt with several answers counts once, as OpenAI does.
    prompts = {id(ask.prompt_ids): len(ask.prompt_ids) for ask in asks}
    total = sum(prompts.values())
    report = state.args.enable_cache_report
    return {
        "prompt_tokens": total,
        "completion_tokens": new,
        "total_tokens": total + new,
        "prompt_tokens_details": {"cached_tokens": cached} if report else None,
    }


def _cached(asks: Sequence[Ask], by_index: dict[int, int]) -> int:
    """Cached prompt tokens, of each prompt's first answer."""
    seen: dict[int, int] = {}
    for index, ask in enumerate(asks):
        seen.setdefault(id(ask.prompt_ids), by_index.get(index, 0))
    return sum(seen.values())


async def _respond(
    state: ServerState,
    request: Request,
    body: _Sampling,
    asks: list[Ask],
    head: Callable[..., Any],
    delta: Callable[[Piece, bool], list[dict[str, Any]]],
    whole: Callable[[int, Whole], dict[str, Any]],
) -> Response:
    if body.stream_options is not None and not body.stream:
        raise ApiError("stream_options is only for stream: true", param="stream_options")
    if not body.stream:
        answers = await until_disconnect(request, wholes(state, asks))
        cached = _cached(asks, {i: answer.cached_tokens for i, answer in enumerate(answers)})
        usage = _usage(state, asks, sum(len(answer.ids) for answer in answers), cached)
        choices = [whole(index, answer) for index, answer in enumerate(answers)]
        return JSONResponse(head(False, choices, usage=usage))
    stream = merged(state, asks)
    # The first piece is awaited before the status goes out, so that a refusal is a status.
    first = await until_disconnect(request, anext(stream))
    with_usage = bool(body.stream_options and body.stream_options.include_usage)
    rest: dict[str, Any] = {"usage": None} if with_usage else {}

    async def events() -> AsyncGenerator[bytes]:
        counts: dict[int, int] = {}
        cached: dict[int, int] = {}
        async with contextlib.aclosing(stream):
            try:
                async for piece in _chain(first, stream):
                    opening = piece.index not in counts
                    counts[piece.index] = piece.completion_tokens
                    cached[piece.index] = piece.cached_tokens
                    for choice in delta(piece, opening):
                        yield event(head(True, [choice], **rest))
            except ApiError as error:
                yield event(error_body(error))
                return
        if with_usage:
            usage = _usage(state, asks, sum(counts.values()), _cached(asks, cached))
            yield event(head(True, [], usage=usage))
        yield DONE

    return EventStream(events())


async def _chain(first: Piece, stream: AsyncGenerator[Piece]) -> AsyncGenerator[Piece]:
    yield first
    async for piece in stream:
        yield piece
