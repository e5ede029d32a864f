"""Members come before the last brace, and nothing else changes."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keel.router.splice import mint_rid, splice

_json = st.recursive(
    st.none() | st.integers() | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=10,
)


def joined(body: bytes, members: bytes) -> bytes:
    return b"".join(splice(body, members))


@given(
    st.dictionaries(st.text(max_size=5), _json, max_size=4),
    st.sampled_from([None, 0, 2]),
    st.sampled_from(["", "\n", " \t\r\n"]),
)
def test_the_result_is_the_object_with_the_members(
    value: dict[str, Any], indent: int | None, tail: str
) -> None:
    body = (json.dumps(value, indent=indent) + tail).encode()
    result = joined(body, b'"rid":"x","n":2')
    assert json.loads(result) == {**value, "rid": "x", "n": 2}
    assert result.endswith(b"}" + tail.encode())
    close = body.rindex(b"}")
    assert result.startswith(body[:close])


@pytest.mark.parametrize(
    ("body", "result"),
    [
        (b"{}", b'{"a":1}'),
        (b"{ \n }", b'{ \n "a":1}'),
        (b' {"x" : "}"} \n', b' {"x" : "}","a":1} \n'),
        (b'{"x":{}}', b'{"x":{},"a":1}'),
        (b'{"a":null}', b'{"a":null,"a":1}'),
        (b'{"x":1,"x":2}', b'{"x":1,"x":2,"a":1}'),
    ],
)
def test_spacing_duplicates_and_nulls_stay(body: bytes, result: bytes) -> None:
    assert joined(body, b'"a":1') == result


def test_nothing_to_add_is_the_same_object_and_no_copy() -> None:
    body = b'{"a":1}'
    assert splice(body, b"")[0] is body


def test_a_large_body_is_not_copied() -> None:
    body = b'{"a":"' + b"x" * 10**6 + b'"}'
    pieces = splice(body, b'"b":1')
    assert isinstance(pieces[0], memoryview)
    assert pieces[0].obj is body
    assert json.loads(b"".join(pieces))["b"] == 1


def test_minted_ids_are_version_4_uuids_and_differ() -> None:
    ids = {mint_rid() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(re.fullmatch(r"[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}", rid) for rid in ids)
