"""What a request asks for, worked out from its bytes before a worker is chosen."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import msgspec

from keel.router.client import ClientRequest
from keel.router.fields import (
    Fields,
    asks_for_many,
    caller_set_rid,
    estimated_tokens,
    is_set,
    output_tokens,
    prompt_of,
    scan,
    text_of,
    wants_stream,
)
from keel.router.policies import Ask
from keel.router.sampling import SamplingContract

CHAT = b"/v1/chat/completions"
COMPLETIONS = b"/v1/completions"
GENERATE = b"/generate"
GENERATION = frozenset((CHAT, COMPLETIONS, GENERATE))

_ids = msgspec.json.Decoder(list[int])


class Plan(msgspec.Struct, gc=False):
    """A request on its way to a worker.

    Args:
        body: as the client sent it.
        members: to be added to it, as JSON; the rid of an attempt comes after them.
        mints: whether the router gives each attempt an id by which it can be aborted.
        length: tokens of prompt and answer, by which a length bucket is chosen.
        repeatable: whether doing it twice does no harm, so that it may be sent again even if it
            may have arrived.
        fields: of a generation request.
    """

    body: bytes
    members: bytes = b""
    model: str = ""
    stream: bool = False
    mints: bool = False
    length: int = 1
    repeatable: bool = False
    ask: Ask = Ask()
    fields: Fields | None = None


def plan_of(
    request: ClientRequest,
    *,
    pd: bool,
    contract: SamplingContract | None,
    reads_prompt: Callable[[str], bool],
    key: bytes,
) -> Plan:
    """Read a request.

    Args:
        pd: whether a prefill worker must be free to finish what it hands over; such requests are
            never aborted.
        reads_prompt: whether the policy for a model looks at the prompt.
        key: the value of the header to hash by.

    Raises:
        Refusal: 400.
    """
    body = request.body
    if request.path not in GENERATION or request.method != b"POST":
        repeatable = request.method in (b"GET", b"HEAD")
        return Plan(body, repeatable=repeatable, ask=Ask(b"", key, estimated_tokens(len(body))))
    fields = scan(body)
    members, default_n = b"", None
    if contract is not None and request.path != GENERATE:
        members, default_n = contract.resolve(fields), contract.default_n
    mints = not (pd or caller_set_rid(fields) or asks_for_many(fields, default_n))
    model = text_of(fields.model)
    prompt, tokens = b"", 0
    if is_set(fields.input_ids):
        prompt, tokens = _of_ids(fields.input_ids)
    elif reads_prompt(model):
        prompt = prompt_of(fields)
    tokens = tokens or estimated_tokens(len(body))
    return Plan(
        body,
        members,
        model,
        wants_stream(fields),
        mints,
        tokens + output_tokens(fields),
        mints,
        Ask(prompt, key, tokens),
        fields,
    )


def _of_ids(raw: msgspec.Raw) -> tuple[bytes, int]:
    """Token ids as bytes that compare like them, and how many; of many prompts only the JSON."""
    try:
        ids = _ids.decode(raw)
        return ids_as_bytes(ids), len(ids)
    except (msgspec.MsgspecError, OverflowError):
        return bytes(raw), 0


def ids_as_bytes(ids: list[int]) -> bytes:
    """Token ids as bytes: two lists share a beginning where these do."""
    return array("I", ids).tobytes()
