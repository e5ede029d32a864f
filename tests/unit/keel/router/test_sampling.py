"""The sampling contract fills in, lets pass, and refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from keel.args.router_values import check_sampling, sampling
from keel.errors import ArgumentError
from keel.router.fields import scan
from keel.router.refusal import Refusal
from keel.router.sampling import SamplingContract


def resolve(rules: dict[str, Any], body: str, *, reject: bool = True) -> dict[str, Any]:
    violated: list[str] = []
    added = SamplingContract(rules, reject, violated.append).resolve(scan(body.encode()))
    assert violated == []
    return dict(json.loads(b"{" + added + b"}"))


RULES = {"temperature": 1.0, "top_k": 20}


@pytest.mark.parametrize("body", ["{}", '{"temperature":null,"top_k":null}'])
def test_absent_and_null_fields_get_the_defaults_in_order(body: str) -> None:
    assert list(resolve(RULES, body).items()) == [("temperature", 1.0), ("top_k", 20)]


def test_equal_values_stay() -> None:
    assert resolve(RULES, '{"temperature":1,"top_k":20.0}') == {}


@pytest.mark.parametrize("value", ["0.5", '"1.0"', "[1]", "true", "{}", "1e999"])
def test_another_or_unreadable_value_is_refused_and_counted(value: str) -> None:
    violated: list[str] = []
    contract = SamplingContract(RULES, True, violated.append)
    with pytest.raises(Refusal) as refusal:
        contract.resolve(scan(f'{{"temperature":{value}}}'.encode()))
    assert refusal.value.status == 400
    assert refusal.value.code == "sampling_contract_violation"
    assert refusal.value.param == "temperature"
    assert violated == ["temperature"]


def test_allow_leaves_the_clients_value() -> None:
    assert resolve(RULES, '{"temperature":0.5}', reject=False) == {"top_k": 20}
    assert resolve(RULES, '{"temperature":"odd"}', reject=False) == {"top_k": 20}


def test_a_band_adds_nothing_and_refuses_what_is_outside() -> None:
    rules = {"temperature": {"min": 0.2, "max": 0.8}}
    assert resolve(rules, "{}") == {}
    assert resolve(rules, '{"temperature":0.2}') == {}
    with pytest.raises(Refusal):
        resolve(rules, '{"temperature":0.9}')


@pytest.mark.parametrize(
    "text",
    ['{"temperature":1,"temperature":1}', '{"heat":1}', "[1]", "{", '{"top_p":{"min":1,"min":1}}'],
)
def test_contracts_that_cannot_be_meant_are_refused_at_the_start(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        sampling(text)


@pytest.mark.parametrize(
    ("rules", "conflict"),
    [
        ({"temperature": 3}, "reject"),
        ({"top_p": 0}, "reject"),
        ({"top_k": 1.5}, "reject"),
        ({"n": 0}, "reject"),
        ({"n": True}, "reject"),
        ({"temperature": "1"}, "reject"),
        ({"temperature": {}}, "reject"),
        ({"temperature": {"low": 1}}, "reject"),
        ({"temperature": {"min": 1, "max": 0.5}}, "reject"),
        ({"temperature": {"min": 0, "max": 1}}, "allow"),
    ],
)
def test_contracts_out_of_range_are_refused_at_the_start(
    rules: dict[str, Any], conflict: str
) -> None:
    with pytest.raises(ArgumentError):
        check_sampling(rules, conflict)
    check_sampling({"temperature": {"min": 0, "max": 1}, "n": 4}, "reject")
