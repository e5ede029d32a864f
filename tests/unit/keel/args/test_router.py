"""The flags of `keel router`."""

from __future__ import annotations

import re
from typing import Any

import pytest

from keel.args.router import RouterArgs, parse
from keel.args.router_refused import REFUSED
from keel.args.router_values import worker_url
from keel.args.table import flags_of
from keel.errors import ArgumentError

# As `sglang_router.launch_router --help` (0.3.2) spells them, with the defaults that agree.
SGLANG: dict[str, Any] = {
    "--host": ...,
    "--port": 30000,
    "--worker-urls": ...,
    "--policy": "cache_aware",
    "--prefill-policy": None,
    "--decode-policy": None,
    "--cache-threshold": 0.3,
    "--balance-abs-threshold": 64,
    "--balance-rel-threshold": 1.5,
    "--max-tree-size": 67108864,
    "--max-payload-size": 536870912,
    "--pd-disaggregation": False,
    "--prefill": ...,
    "--decode": ...,
    "--log-level": "info",
    "--request-id-headers": ...,
    "--request-timeout-secs": 1800,
    "--shutdown-grace-period-secs": 180,
    "--retry-max-retries": 5,
    "--retry-initial-backoff-ms": 50,
    "--retry-max-backoff-ms": ...,
    "--retry-backoff-multiplier": 1.5,
    "--retry-jitter-factor": 0.2,
    "--disable-retries": False,
    "--max-concurrent-requests": -1,
    "--queue-size": 100,
    "--queue-timeout-secs": 60,
    "--rate-limit-tokens-per-second": None,
    "--cb-failure-threshold": 10,
    "--cb-success-threshold": 3,
    "--cb-timeout-duration-secs": 60,
    "--cb-window-duration-secs": 120,
    "--disable-circuit-breaker": False,
    "--health-failure-threshold": 3,
    "--health-success-threshold": 2,
    "--health-check-timeout-secs": 5,
    "--health-check-interval-secs": ...,
    "--health-check-endpoint": "/health",
    "--disable-health-check": False,
    "--model-path": None,
    "--tokenizer-path": None,
    "--chat-template": None,
    "--api-key": None,
}


def test_the_names_and_most_defaults_are_those_of_sglangs_router() -> None:
    known = {name: flag for flag in flags_of(RouterArgs) for name in flag.names}
    assert set(SGLANG) <= set(known)
    for name, default in SGLANG.items():
        if default is not ...:
            assert known[name].default == default, name


def test_no_two_flags_share_a_name_and_each_has_a_sentence() -> None:
    flags = flags_of(RouterArgs)
    names = [name for flag in flags for name in flag.names]
    assert len(names) == len(set(names))
    assert all(flag.help.endswith((".", "…")) for flag in flags)


def test_workers_can_be_given_together_and_again() -> None:
    args = parse(["--worker-urls", "http://a:1", "http://b", "--worker-urls", "http://c:2/x/"])
    assert args.worker_urls == ("http://a:1", "http://b:80", "http://c:2/x")


def test_a_prefill_worker_may_bring_its_bootstrap_port() -> None:
    words = "--pd-disaggregation --prefill http://a:1 8997 --prefill http://b:1 none"
    args = parse([*words.split(), "--prefill", "http://c:1", "--decode", "http://d:1"])
    assert args.prefill_workers == (
        ("http://a:1", 8997),
        ("http://b:1", None),
        ("http://c:1", None),
    )


def test_models_have_policies_and_lengths_have_workers() -> None:
    words = "--worker-urls http://a http://b --model-policy org/m=random x=least_load"
    buckets = "--length-bucket 4096 http://a --length-bucket inf http://b"
    args = parse(f"{words} {buckets}".split())
    assert args.model_policies == {"org/m": "random", "x": "least_load"}
    assert args.length_buckets == {"http://a:80": 4096, "http://b:80": float("inf")}


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("--policy magic", "magic"),
        ("--worker-urls https://a", "http://"),
        ("--worker-urls http://a:0x", "not the URL"),
        ("--worker-urls http://a http://a", "twice"),
        ("--worker-urls http://a http://a:80", "twice"),
        ("--prefill http://a --decode http://b", "--pd-disaggregation"),
        ("--pd-disaggregation --decode http://b", "--prefill"),
        ("--pd-disaggregation --worker-urls http://b", "--worker-urls"),
        ("--pd-disaggregation --decode http://b --prefill http://a 1 2", "--prefill"),
        ("--pd-disaggregation --decode http://b --prefill http://a port", "whole number"),
        ("--model-policy x", "MODEL=POLICY"),
        ("--model-policy x=magic", "MODEL=POLICY"),
        ("--length-bucket 5", "no worker"),
        ("--length-bucket 5 http://a", "no worker"),
        ("--length-bucket x http://a", "whole number"),
        ("--request-timeout-secs 0", "seconds"),
        ("--request-timeout-secs nan", "seconds"),
        ("--cache-threshold 2", "from 0 to 1"),
        ("--balance-rel-threshold 0.5", "at least 1"),
        ("--health-check-endpoint health", "begins with /"),
        ("--hash-header a:b", "header"),
        ("--port 70000", "65535"),
        ("--worker-url http://a", "--worker-urls"),
        ('--sampling-defaults {"temperature":9}', "out of range"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_value_or_the_way_out(
    words: str, part: str
) -> None:
    with pytest.raises(ArgumentError) as error:
        parse(words.split())
    assert part in error.value.what + error.value.remedy


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://a", "http://a:80"),
        ("http://A.example:8000/", "http://a.example:8000"),
        ("http://[::1]:8000/base/", "http://[::1]:8000/base"),
    ],
)
def test_a_url_has_one_spelling(text: str, url: str) -> None:
    assert worker_url(text) == url
    assert worker_url(url) == url


def test_every_other_flag_of_sglangs_router_is_refused_with_what_to_write_instead() -> None:
    known = {name for flag in flags_of(RouterArgs) for name in flag.names}
    assert not known & set(REFUSED)
    for name in REFUSED:
        for words in ([name, "x"], [f"{name}=x"]):
            with pytest.raises(ArgumentError) as refused:
                parse(["--worker-urls", "http://a:1", *words])
            assert name in str(refused.value)
            assert "did you mean" not in str(refused.value)


@pytest.mark.parametrize("words", [["--policy", "manual"], ["--prefill-policy=bucket"]])
def test_policies_of_sglangs_router_are_refused_with_their_nearest(words: list[str]) -> None:
    with pytest.raises(ArgumentError, match="does not exist") as refused:
        parse(words)
    assert re.search("consistent_hashing|--length-bucket", refused.value.remedy)


def test_a_limit_of_no_requests_is_refused() -> None:
    with pytest.raises(ArgumentError, match="lets nothing begin"):
        parse(["--max-concurrent-requests", "0"])
