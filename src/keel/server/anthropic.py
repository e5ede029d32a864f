"""Anthropic's API: messages, as its own client speaks it, over the same engine as OpenAI's."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from keel.server.answers import Ask, EventStream, Piece, merged, until_disconnect, wholes
from keel.server.errors import ApiError, anthropic_body
from keel.server.prepare import (
    check_length,
    check_model,
    check_serving,
    encode_chat,
    make_rid,
    sampling_of,
)
from keel.server.protocol import (
    ChatCompletionRequest,
    CountTokensRequest,
    Message,
    MessagesRequest,
    TextPart,
)
from keel.server.state import ServerState

_json = msgspec.json.Encoder()


def anthropic_routes(state: ServerState) -> APIRouter:
    """`/v1/messages` and its count of tokens."""
    routes = APIRouter(prefix="/v1/messages", tags=["Anthropic"])

    @routes.post("")
    async def messages(body: MessagesRequest, request: Request) -> Response:
        check_serving(state)
        check_model(state, body.model)
        chat = _as_chat(body)
        ids = await encode_chat(state, chat)
        check_length(state, ids, body.max_tokens, "messages")
        rid = make_rid(None)
        ask = Ask(rid, ids, sampling_of(chat, body.max_tokens), tuple(body.stop_sequences or ()))
        message = {
            "id": f"msg_{rid}",
            "type": "message",
            "role": "assistant",
            "model": state.args.model_name,
        }
        if body.stream:
            return await _stream(state, request, ask, message)
        (answer,) = await until_disconnect(request, wholes(state, [ask]))
        usage = {"input_tokens": len(ids), "output_tokens": len(answer.ids)}
        content = [{"type": "text", "text": answer.text}]
        end = _end(answer.finish.kind, answer.matched)
        return JSONResponse({**message, "content": content, **end, "usage": usage})

    @routes.post("/count_tokens")
    async def count_tokens(body: CountTokensRequest) -> dict[str, int]:
        check_serving(state)
        check_model(state, body.model)
        return {"input_tokens": len(await encode_chat(state, _as_chat(body)))}

    return routes


def _as_chat(body: CountTokensRequest) -> ChatCompletionRequest:
    """The same conversation in OpenAI's words: one way to the template and to the sampler."""

    def text(content: str | list[TextPart]) -> str:
        return content if isinstance(content, str) else "\n".join(part.text for part in content)

    turns = [Message(role=turn.role, content=text(turn.content)) for turn in body.messages]
    if body.system:
        turns.insert(0, Message(role="system", content=text(body.system)))
    how: dict[str, Any] = {}
    if isinstance(body, MessagesRequest):
        how = {"temperature": body.temperature, "top_p": body.top_p, "top_k": body.top_k}
    return ChatCompletionRequest(messages=turns, **how)


def _end(kind: str, matched: str | int | None) -> dict[str, Any]:
    """Why an answer ended; a stop sequence is named."""
    if isinstance(matched, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": matched}
    reason = "max_tokens" if kind == "length" else "end_turn"
    return {"stop_reason": reason, "stop_sequence": None}


def _event(kind: str, **rest: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), _json.encode({"type": kind, **rest}))


async def _stream(
    state: ServerState, request: Request, ask: Ask, message: dict[str, Any]
) -> Response:
    stream = merged(state, [ask])
    # The first piece is awaited before the status goes out, so that a refusal is a status.
    first = await until_disconnect(request, anext(stream))
    empty: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
    usage = {"input_tokens": len(ask.prompt_ids), "output_tokens": 0}

    async def events() -> AsyncGenerator[bytes]:
        yield _event("message_start", message={**message, **empty, "usage": usage})
        block = {"type": "text", "text": ""}
        yield _event("content_block_start", index=0, content_block=block)
        piece: Piece = first
        async with contextlib.aclosing(stream):
            try:
                while True:
                    if piece.text:
                        delta = {"type": "text_delta", "text": piece.text}
                        yield _event("content_block_delta", index=0, delta=delta)
                    if piece.finish is not None:
                        break
                    piece = await anext(stream)
            except ApiError as error:
                yield _event("error", error=anthropic_body(error)["error"])
                return
        assert piece.finish is not None
        yield _event("content_block_stop", index=0)
        yield _event(
            "message_delta",
            delta=_end(piece.finish.kind, piece.matched),
            usage={"output_tokens": piece.completion_tokens},
        )
        yield _event("message_stop")

    return EventStream(events())
