"""What routing needs of a request's JSON, read in one pass; the rest is checked and not kept."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from keel.args.router_values import SAMPLING_FIELDS
from keel.router.refusal import invalid_json

ABSENT = msgspec.Raw(b"")


class Fields(msgspec.Struct, gc=False):
    """The members of a request's top-level object that the router reads, as the bytes they are.

    Absent members are `ABSENT`. Of a member that is there twice the last counts, as for engines.
    """

    model: msgspec.Raw = ABSENT
    stream: msgspec.Raw = ABSENT
    rid: msgspec.Raw = ABSENT
    n: msgspec.Raw = ABSENT
    best_of: msgspec.Raw = ABSENT
    max_tokens: msgspec.Raw = ABSENT
    max_completion_tokens: msgspec.Raw = ABSENT
    temperature: msgspec.Raw = ABSENT
    top_p: msgspec.Raw = ABSENT
    top_k: msgspec.Raw = ABSENT
    min_p: msgspec.Raw = ABSENT
    repetition_penalty: msgspec.Raw = ABSENT
    frequency_penalty: msgspec.Raw = ABSENT
    presence_penalty: msgspec.Raw = ABSENT
    messages: msgspec.Raw = ABSENT
    prompt: msgspec.Raw = ABSENT
    text: msgspec.Raw = ABSENT
    input_ids: msgspec.Raw = ABSENT
    sampling_params: msgspec.Raw = ABSENT


_decoder = msgspec.json.Decoder(Fields)
_string = msgspec.json.Decoder(str)
UNREADABLE = object()


def scan(body: bytes) -> Fields:
    """Read the routing fields of a JSON object.

    Raises:
        Refusal: 400; the body is not JSON, or no object.
    """
    try:
        return _decoder.decode(body)
    except RecursionError:
        raise invalid_json("it is nested too deeply") from None
    except msgspec.ValidationError as error:
        raise invalid_json(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return _second_opinion(body, str(error))


def _second_opinion(body: bytes, why: str) -> Fields:
    """Half of a surrogate pair is an error to msgspec and none to the engines' parsers."""
    if b"\\u" not in body:
        raise invalid_json(why)

    def no_constant(name: str) -> Any:
        raise ValueError(f"{name} is no JSON")

    try:
        value = json.loads(body, parse_constant=no_constant)
    except (ValueError, RecursionError):
        raise invalid_json(why) from None
    if not isinstance(value, dict):
        raise invalid_json(f"Expected `object`, got `{type(value).__name__}`")
    known = {
        name: msgspec.Raw(json.dumps(value[name]).encode())
        for name in Fields.__struct_fields__
        if name in value
    }
    return Fields(**known)


def is_set(raw: msgspec.Raw) -> bool:
    """Whether a member is there and not null."""
    return raw is not ABSENT and bytes(raw) != b"null"


def text_of(raw: msgspec.Raw) -> str:
    """The string that a member is, or an empty one."""
    if raw is ABSENT:
        return ""
    try:
        return _string.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""


def number_of(raw: msgspec.Raw) -> float | int | object | None:
    """The number that a member is; None where absent or null, UNREADABLE where anything else."""
    if raw is ABSENT:
        return None
    text = bytes(raw)
    if text == b"null":
        return None
    if text[0] not in b"-0123456789":
        return UNREADABLE
    try:
        number = json.loads(text)
    except ValueError:
        return UNREADABLE
    return number if isinstance(number, int) or abs(number) != float("inf") else UNREADABLE


def wants_stream(fields: Fields) -> bool:
    """Whether the answer is to be a stream."""
    return bytes(fields.stream) == b"true"


def sampling_of(fields: Fields, name: str) -> float | int | object | None:
    """One of SAMPLING_FIELDS, as `number_of`."""
    raw: msgspec.Raw = getattr(fields, name)
    return number_of(raw)


def caller_set_rid(fields: Fields) -> bool:
    """A string or a list; the engine is then never told to abort, since it aborts by prefix."""
    return is_set(fields.rid)


def asks_for_many(fields: Fields, default_n: float | int | None = None) -> bool:
    """Whether more than one sample is effectively requested, or it cannot be told.

    Args:
        default_n: what the router adds where the request has no `n`.
    """
    f = fields
    if (
        f.n is f.best_of is f.prompt is f.text is f.input_ids is f.sampling_params is ABSENT
        and default_n is None
    ):
        return False  # a chat, nearly always
    samples = number_of(fields.n)
    if samples is None:
        samples = default_n
    if _more_than_one(samples) or _more_than_one(number_of(fields.best_of)):
        return True
    # /v1/completions takes a list of prompts, /generate lists of texts, of id lists, of params.
    if _first_of_list(fields.text) or _first_of_list(fields.sampling_params):
        return True
    if _first_of_list(fields.prompt) in (b'"', b"[") or _first_of_list(fields.input_ids) == b"[":
        return True
    return is_set(fields.sampling_params) and _many_in_params(fields.sampling_params)


def _more_than_one(value: object) -> bool:
    if value is UNREADABLE:
        return True
    return isinstance(value, int | float) and value > 1


def _first_of_list(raw: msgspec.Raw) -> bytes:
    """The first byte of the first item if a member is a list, `]` if that is empty."""
    if raw is ABSENT:
        return b""
    view = bytes(memoryview(raw)[:64])
    if not view.startswith(b"["):
        return b""
    rest = view[1:].lstrip()
    return rest[:1] or b"?"


class _Params(msgspec.Struct):
    n: msgspec.Raw = ABSENT


_params = msgspec.json.Decoder(_Params)


def _many_in_params(raw: msgspec.Raw) -> bool:
    try:
        return _more_than_one(number_of(_params.decode(raw).n))
    except msgspec.MsgspecError:
        return True


# Bytes of JSON per token, about, where nobody has counted.
_BYTES_PER_TOKEN = 4


def estimated_tokens(body_bytes: int) -> int:
    """Never 0: a request without weight would be invisible to load balancing."""
    return max(1, body_bytes // _BYTES_PER_TOKEN)


def output_tokens(fields: Fields) -> int:
    """The most tokens of the answer, where the request says it, else 0."""
    if fields.max_completion_tokens is fields.max_tokens is ABSENT:
        return 0
    for raw in (fields.max_completion_tokens, fields.max_tokens):
        value = number_of(raw)
        if isinstance(value, int) and value > 0:
            return value
    return 0


def prompt_of(fields: Fields) -> bytes:
    """The bytes by which prompts are compared: requests that share a prefix of these share it."""
    for raw in (fields.messages, fields.prompt, fields.text, fields.input_ids):
        if raw is not ABSENT:
            return bytes(raw)
    return b""


assert set(SAMPLING_FIELDS) <= set(Fields.__struct_fields__)
