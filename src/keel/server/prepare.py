"""From request bodies to what the scheduler takes: prompts, limits, sampling."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence

from keel.messages import SamplingParams
from keel.server.errors import ApiError
from keel.server.protocol import ChatCompletionRequest, NativeSampling, Stop, _Sampling
from keel.server.state import ServerState
from keel.tokenizer.chat import ChatTemplateError

# Longer texts are tokenized on another thread, so that they hold nobody up.
_LONG_TEXT = 20_000


def check_serving(state: ServerState) -> None:
    """Refuse while the model loads, and while the server drains.

    Raises:
        ApiError: 503.
    """
    if state.draining:
        raise ApiError("the server is shutting down", 503)
    if not state.client.is_serving:
        raise ApiError("the model is not loaded yet", 503)


def check_model(state: ServerState, name: str) -> None:
    """Refuse another model's name; `default` is whatever is served.

    Raises:
        ApiError: 404.
    """
    if name not in ("default", "", state.args.model_name):
        raise ApiError(
            f"the model {name!r} does not exist; this server serves {state.args.model_name!r}",
            404,
            "model",
            "model_not_found",
        )


def make_rid(given: str | None) -> str:
    """The client's id, or a new one."""
    return given or uuid.uuid4().hex


def most_tokens(state: ServerState) -> int:
    """The longest request, prompt and answer."""
    assert state.client.ready is not None
    return state.client.ready.max_request_tokens


async def encode(
    state: ServerState, text: str, param: str, *, add_special_tokens: bool = True
) -> list[int]:
    """Token ids of a prompt.

    Raises:
        ApiError: it is no Unicode text, or cannot fit.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ApiError(f"{param} is no Unicode text: {error.reason}", param=param) from error
    if len(text) > most_tokens(state) * state.longest_token:
        raise ApiError(
            f"{param} has {len(text)} characters, more than the {most_tokens(state)} tokens of a "
            "request can hold",
            param=param,
            code="context_length_exceeded",
        )
    tokenizer = state.tokenizer
    if len(text) < _LONG_TEXT:
        return tokenizer.encode(text, add_special_tokens=add_special_tokens)
    return await asyncio.to_thread(tokenizer.encode, text, add_special_tokens=add_special_tokens)


async def encode_chat(state: ServerState, body: ChatCompletionRequest) -> list[int]:
    """Token ids of a conversation; those that came with it, where they did.

    Raises:
        ApiError: there is no template, or it refuses the messages.
    """
    if body.input_ids is not None:
        return body.input_ids
    if state.chat_template is None:
        raise ApiError(
            "this model has no chat template; use /v1/completions, or start the server with "
            "--chat-template",
            param="messages",
        )
    messages = []
    for message in body.messages:
        plain = message.model_dump(exclude_none=True)
        if isinstance(message.content, list):
            plain["content"] = "\n".join(part.text for part in message.content)
        messages.append(plain)
    variables = {
        "add_generation_prompt": body.add_generation_prompt,
        **(state.args.default_chat_template_kwargs or {}),
        **(body.chat_template_kwargs or {}),
    }
    try:
        text = state.chat_template.render(messages, **variables)
    except ChatTemplateError as error:
        raise ApiError(error.what, param="messages") from error
    return await encode(state, text, "messages", add_special_tokens=False)


def check_length(state: ServerState, ids: Sequence[int], new: int | None, param: str) -> None:
    """Refuse what the context cannot hold, and tokens that the model does not know.

    Raises:
        ApiError: 400.
    """
    most, vocab = most_tokens(state), state.config.vocab_size
    if not ids:
        raise ApiError(f"{param} has no tokens", param=param)
    if max(ids) >= vocab:
        raise ApiError(f"token {max(ids)} is none of the model's {vocab}", param=param)
    code = "context_length_exceeded"
    if len(ids) >= most:
        raise ApiError(
            f"the prompt has {len(ids)} tokens; a request holds {most}, prompt and answer together",
            param=param,
            code=code,
        )
    if new is not None and len(ids) + new > most:
        raise ApiError(
            f"a prompt of {len(ids)} tokens and {new} new ones are more than the {most} that a "
            f"request holds; ask for {most - len(ids)} at most",
            param=param,
            code=code,
        )


def stop_strings(stop: Stop) -> tuple[str, ...]:
    """One or several as a tuple."""
    if stop is None:
        return ()
    return (stop,) if isinstance(stop, str) else tuple(stop)


def sampling_of(body: _Sampling, max_new_tokens: int | None) -> SamplingParams:
    """How an OpenAI body wants tokens chosen."""
    return SamplingParams(
        max_new_tokens=max_new_tokens,
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=body.top_k or -1,
        min_p=body.min_p or 0.0,
        seed=body.seed,
        min_new_tokens=body.min_tokens or 0,
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=body.ignore_eos,
    )


def native_sampling(body: NativeSampling) -> SamplingParams:
    """How a `/generate` body wants tokens chosen."""
    return SamplingParams(
        max_new_tokens=body.max_new_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k or -1,
        min_p=body.min_p,
        seed=body.sampling_seed,
        min_new_tokens=body.min_new_tokens,
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=body.ignore_eos,
    )
