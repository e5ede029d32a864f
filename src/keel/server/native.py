"""SGLang's own API: generate, abort, flush, server info."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import AsyncGenerator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from keel.server.answers import (
    Ask,
    EventStream,
    Whole,
    choices_of,
    merged,
    until_disconnect,
    wholes,
)
from keel.server.errors import ApiError, error_body
from keel.server.openai import DONE, event
from keel.server.prepare import (
    check_length,
    check_serving,
    encode,
    make_rid,
    native_sampling,
    stop_strings,
)
from keel.server.protocol import AbortRequest, GenerateRequest
from keel.server.state import ServerState


def keel_version() -> str:
    """Of the installed distribution."""
    try:
        return version("slipway")
    except PackageNotFoundError:
        return "0.1.0.dev0+guess"


def native_routes(state: ServerState) -> APIRouter:
    """The routes beside OpenAI's."""
    routes = APIRouter(tags=["native"])

    @routes.post("/generate")
    async def generate(body: GenerateRequest, request: Request) -> Response:
        check_serving(state)
        prompts, single = await _prompts(state, body)
        rids = _rids(body, len(prompts))
        how = body.sampling_params
        params = native_sampling(how)
        asks: list[Ask] = []
        for rid, ids in zip(rids, prompts, strict=True):
            check_length(state, ids, params.max_new_tokens, "input_ids")
            ask = Ask(
                rid, ids, params, stop_strings(how.stop), how.no_stop_trim, how.skip_special_tokens
            )
            asks += choices_of(ask, how.n)
        alone = single and how.n == 1
        started = time.perf_counter()
        if not body.stream:
            answers = await until_disconnect(request, wholes(state, asks))
            results = [_result(*pair, started) for pair in zip(asks, answers, strict=True)]
            return JSONResponse(results[0] if alone else results)
        stream = merged(state, asks)
        first = await until_disconnect(request, anext(stream))

        async def events() -> AsyncGenerator[bytes]:
            grown = [Whole() for _ in asks]
            piece = first
            async with contextlib.aclosing(stream):
                try:
                    while True:
                        answer = grown[piece.index]
                        answer.text += piece.text
                        answer.ids += piece.ids
                        answer.cached_tokens = piece.cached_tokens
                        if piece.finish is not None:
                            answer.finish, answer.matched = piece.finish, piece.matched
                        done = piece.finish is not None
                        shown = _result(asks[piece.index], answer, started, done)
                        yield event(shown if alone else {**shown, "index": piece.index})
                        piece = await anext(stream)
                except StopAsyncIteration:
                    pass
                except ApiError as error:
                    yield event(error_body(error))
                    return
            yield DONE

        return EventStream(events())

    @routes.post("/abort_request")
    async def abort_request(body: AbortRequest) -> Response:
        if not body.rid and not body.abort_all:
            raise ApiError("rid is empty; give the beginning of an id, or abort_all", param="rid")
        check_serving(state)
        await state.client.abort("" if body.abort_all else body.rid)
        return Response(status_code=200)

    @routes.api_route("/flush_cache", methods=["GET", "POST"])
    async def flush_cache() -> Response:
        check_serving(state)
        if await state.client.flush_cache():
            return Response("Cache flushed.\n", media_type="text/plain")
        raise ApiError("the cache is in use: requests are running or waiting")

    @routes.get("/get_server_info")
    @routes.get("/server_info")
    async def server_info() -> dict[str, Any]:
        return await _info(state)

    @routes.get("/get_model_info")
    async def model_info() -> dict[str, Any]:
        return {
            "model_path": state.args.model_path,
            "tokenizer_path": state.args.tokenizer_path or state.args.model_path,
            "is_generation": True,
        }

    @routes.get("/version")
    async def version_of() -> dict[str, str]:
        return {"version": keel_version()}

    return routes


async def _prompts(state: ServerState, body: GenerateRequest) -> tuple[list[list[int]], bool]:
    """Prompts, and whether there is one that was not given in a list."""
    if (body.text is None) == (body.input_ids is None):
        raise ApiError("give either text or input_ids", param="text")
    if body.text is not None:
        texts = [body.text] if isinstance(body.text, str) else body.text
        if not texts:
            raise ApiError("text is an empty list", param="text")
        found = [await encode(state, text, "text") for text in texts]
        return found, isinstance(body.text, str)
    ids = body.input_ids
    if not ids:
        raise ApiError("input_ids is empty", param="input_ids")
    if isinstance(ids[0], int):
        return [list(ids)], True
    return [list(one) for one in ids], False


def _rids(body: GenerateRequest, count: int) -> list[str]:
    if isinstance(body.rid, list):
        if len(body.rid) != count:
            raise ApiError(f"{len(body.rid)} rids for {count} prompts", param="rid")
        if len(set(body.rid)) != count:
            raise ApiError("rid names two requests alike", param="rid")
        return body.rid
    rid = make_rid(body.rid)
    return [rid] if count == 1 else [f"{rid}-{index}" for index in range(count)]


def _result(ask: Ask, answer: Whole, started: float, done: bool = True) -> dict[str, Any]:
    reason: dict[str, Any] | None = None
    if done:
        reason = {"type": answer.finish.kind}
        if answer.finish.kind == "length":
            reason["length"] = len(answer.ids)
        elif answer.finish.kind == "stop":
            reason["matched"] = answer.matched
    return {
        "text": answer.text,
        "output_ids": answer.ids,
        "meta_info": {
            "id": ask.rid,
            "finish_reason": reason,
            "prompt_tokens": len(ask.prompt_ids),
            "completion_tokens": len(answer.ids),
            "cached_tokens": answer.cached_tokens,
            "e2e_latency": time.perf_counter() - started,
        },
    }


async def _info(state: ServerState) -> dict[str, Any]:
    """What was asked, what became of it, and the scheduler now."""
    args = dataclasses.asdict(state.args)
    args["api_key"] = None if state.args.api_key is None else "(set)"
    client = state.client
    info = {**args, "version": keel_version(), "scheduler_pid": client.pid}
    if (ready := client.ready) is None:
        return {**info, "status": "loading", "internal_states": []}
    stats = await client.get_stats()
    return {
        **info,
        "status": "draining" if state.draining else "ready",
        "device": ready.device,
        "dtype": ready.dtype,
        "max_request_tokens": ready.max_request_tokens,
        "max_running_requests": ready.max_running_requests,
        "chunked_prefill_size": ready.chunked_prefill_size,
        "max_total_num_tokens": ready.pool_tokens,
        "load_seconds": round(ready.seconds, 3),
        "internal_states": [
            {
                "num_running_reqs": stats.running,
                "num_waiting_reqs": stats.waiting,
                "num_used_tokens": stats.used_tokens,
                "num_cached_tokens": stats.cached_tokens,
                "prompt_tokens_total": stats.prompt_tokens_total,
                "cached_tokens_total": stats.prefix_hit_tokens_total,
                "generation_tokens_total": stats.generated_tokens_total,
                "num_aborted_requests_total": stats.aborted_total,
                "num_retractions_total": stats.preempted_total,
                "last_gen_throughput": client.tokens_per_second,
            }
        ],
    }
