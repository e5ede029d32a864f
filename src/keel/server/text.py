"""Text to tokens and back, as the server itself does it."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from keel.server.errors import ApiError
from keel.server.prepare import check_model, check_serving, encode, most_tokens
from keel.server.protocol import DetokenizeRequest, TokenizeRequest
from keel.server.state import ServerState


def text_routes(state: ServerState) -> APIRouter:
    """`/tokenize` and `/detokenize`, below `/v1` too."""
    routes = APIRouter(tags=["text"])

    @routes.post("/tokenize")
    @routes.post("/v1/tokenize")
    async def tokenize(body: TokenizeRequest) -> dict[str, Any]:
        check_serving(state)
        check_model(state, body.model)
        texts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
        special = body.add_special_tokens
        found = [await encode(state, one, "prompt", add_special_tokens=special) for one in texts]
        counts = [len(ids) for ids in found]
        single = isinstance(body.prompt, str)
        return {
            "tokens": found[0] if single else found,
            "count": counts[0] if single else counts,
            "max_model_len": most_tokens(state),
        }

    @routes.post("/detokenize")
    @routes.post("/v1/detokenize")
    async def detokenize(body: DetokenizeRequest) -> dict[str, Any]:
        check_serving(state)
        check_model(state, body.model)
        nested = bool(body.tokens) and isinstance(body.tokens[0], list)
        rows: Any = body.tokens if nested else [body.tokens]
        texts = [_text(state, ids, body.skip_special_tokens) for ids in rows]
        return {"text": texts if nested else texts[0]}

    return routes


def _text(state: ServerState, ids: list[int], skip_special_tokens: bool) -> str:
    if ids and max(ids) >= state.config.vocab_size:
        message = f"token {max(ids)} is none of the model's {state.config.vocab_size}"
        raise ApiError(message, param="tokens")
    return state.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
