"""The one pass over a request's JSON finds what the parsers of engines find."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keel.router.fields import (
    UNREADABLE,
    Fields,
    asks_for_many,
    caller_set_rid,
    estimated_tokens,
    is_set,
    number_of,
    output_tokens,
    prompt_of,
    scan,
    text_of,
    wants_stream,
)
from keel.router.refusal import Refusal

NAMES = Fields.__struct_fields__
_text = st.text(max_size=20) | st.sampled_from(
    ['"', "\\", "}", "{", '"rid":"x"', "\n", "€", "\x7f"]
)
_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | _text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_text, inner, max_size=4),
    max_leaves=20,
)
_objects = st.dictionaries(st.sampled_from(NAMES) | _text, _json, max_size=8)


@given(_objects, st.booleans(), st.sampled_from([None, 1, "\t"]))
def test_every_member_is_found_with_its_value_and_none_is_made_up(
    value: dict[str, Any], ascii_only: bool, indent: Any
) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode(
        "utf-8", "surrogatepass"
    )
    fields = scan(body)
    for name in NAMES:
        found = bytes(getattr(fields, name))
        assert bool(found) is (name in value)
        if found:
            assert json.loads(found) == value[name]


@given(st.binary(max_size=60))
def test_bytes_that_are_no_json_object_are_refused_and_others_are_not(body: bytes) -> None:
    def no_constant(_: str) -> None:
        raise ValueError

    try:
        good = isinstance(json.loads(body.decode("utf-8"), parse_constant=no_constant), dict)
    except ValueError:
        good = False
    if body.startswith(b"\xef\xbb\xbf"):
        good = False
    try:
        scan(body)
        found = True
    except Refusal:
        found = False
    # Where the bytes are no UTF-8 the engine says so; here they only pass.
    assert found or not good
    if good != found:
        with pytest.raises(UnicodeDecodeError):
            body.decode("utf-8")


def test_of_members_that_are_there_twice_the_last_counts() -> None:
    fields = scan(b'{"rid":"a","n":5,"rid":null,"n":1}')
    assert not caller_set_rid(fields)
    assert not asks_for_many(fields)


def test_escaped_names_are_the_names_they_mean() -> None:
    assert caller_set_rid(scan(rb'{"\u0072id":"x"}'))


def test_members_of_nested_objects_are_not_the_requests() -> None:
    assert not caller_set_rid(scan(b'{"metadata":{"rid":"x","stream":true}}'))


@pytest.mark.parametrize(
    ("raw", "given_"), [('"abc"', True), ('["a","b"]', True), ("null", False), ("", False)]
)
def test_a_rid_is_the_callers_unless_null(raw: str, given_: bool) -> None:
    body = f'{{"rid":{raw}}}' if raw else "{}"
    assert caller_set_rid(scan(body.encode())) is given_


@pytest.mark.parametrize(
    ("body", "many"),
    [
        ("{}", False),
        ('{"n":null}', False),
        ('{"n":1}', False),
        ('{"n":1.0}', False),
        ('{"n":0}', False),
        ('{"n":2}', True),
        ('{"n":1.5}', True),
        ('{"n":"3"}', True),
        ('{"n":"1"}', True),
        ('{"n":[2]}', True),
        ('{"n":true}', True),
        ('{"n":1e999}', True),
        ('{"best_of":3}', True),
        ('{"prompt":"a"}', False),
        ('{"prompt":[1,2]}', False),
        ('{"prompt":[]}', False),
        ('{"prompt":[ "a" ]}', True),
        ('{"prompt":[ [1] ]}', True),
        ('{"input_ids":[1,2]}', False),
        ('{"input_ids":[[1],[2]]}', True),
        ('{"text":"a"}', False),
        ('{"text":["a"]}', True),
        ('{"sampling_params":{"n":1}}', False),
        ('{"sampling_params":{"n":2}}', True),
        ('{"sampling_params":{"n":"x"}}', True),
        ('{"sampling_params":"x"}', True),
        ('{"sampling_params":[{}]}', True),
    ],
)
def test_more_than_one_sample_and_what_cannot_be_read_fan_out(body: str, many: bool) -> None:
    assert asks_for_many(scan(body.encode())) is many


def test_a_default_counts_where_the_request_says_nothing() -> None:
    assert asks_for_many(scan(b"{}"), 4)
    assert asks_for_many(scan(b'{"n":null}'), 4)
    assert not asks_for_many(scan(b'{"n":1}'), 4)
    assert not asks_for_many(scan(b"{}"), 1)


@pytest.mark.parametrize(
    ("raw", "value"),
    [("1", 1), ("-2.5", -2.5), ("1e2", 100.0), ("null", None), ('"1"', UNREADABLE),
     ("true", UNREADABLE), ("[1]", UNREADABLE), ("{}", UNREADABLE), ("1e999", UNREADABLE)],
)  # fmt: skip
def test_numbers(raw: str, value: object) -> None:
    assert number_of(scan(f'{{"n":{raw}}}'.encode()).n) == value


def test_half_a_surrogate_pair_is_read_like_python_reads_it() -> None:
    fields = scan(rb'{"model":"tiny","messages":[{"content":"\ud83d"}],"stream":true}')
    assert text_of(fields.model) == "tiny"
    assert wants_stream(fields)
    with pytest.raises(Refusal):
        scan(rb'{"a":"\ud83d"')
    with pytest.raises(Refusal):
        scan(rb'["\ud83d"]')


def test_a_model_that_is_no_string_is_no_model() -> None:
    assert text_of(scan(b'{"model":7}').model) == ""
    assert text_of(scan(b"{}").model) == ""
    assert text_of(scan(b'{"model":"\xff"}').model) == ""


def test_a_token_estimate_is_never_zero() -> None:
    assert estimated_tokens(0) == 1
    assert estimated_tokens(3) == 1
    assert estimated_tokens(4000) == 1000


def test_output_tokens_prefer_the_newer_name() -> None:
    assert output_tokens(scan(b'{"max_tokens":5,"max_completion_tokens":7}')) == 7
    assert output_tokens(scan(b'{"max_tokens":5,"max_completion_tokens":null}')) == 5
    assert output_tokens(scan(b'{"max_tokens":"5"}')) == 0


def test_the_prompt_is_the_part_that_caches_share() -> None:
    assert prompt_of(scan(b'{"messages":[1],"prompt":"a"}')) == b"[1]"
    assert prompt_of(scan(b'{"prompt":"a"}')) == b'"a"'
    assert prompt_of(scan(b'{"model":"a"}')) == b""
    assert is_set(scan(b'{"prompt":""}').prompt)
