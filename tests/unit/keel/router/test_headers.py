"""Which headers pass."""

from __future__ import annotations

import pytest

from keel.router.headers import AllowList


@pytest.mark.parametrize(
    ("name", "passes"),
    [
        (b"authorization", True),
        (b"x-request-id", True),
        (b"x-request-id-parent", True),
        (b"x-request-id2", False),
        (b"x-correlation-id", True),
        (b"traceparent", True),
        (b"tracestate", True),
        (b"x-sgl-metric-label", True),
        (b"x-data-parallel-rank", False),
        (b"cookie", False),
        (b"host", False),
        (b"content-length", False),
        (b"transfer-encoding", False),
        (b"x-custom", False),
    ],
)
def test_the_standard_list(name: bytes, passes: bool) -> None:
    allow = AllowList()
    assert allow.allows(name) is passes
    assert allow.allows(name) is passes  # remembered


def test_further_names_pass_but_never_those_that_are_the_routers() -> None:
    allow = AllowList(["x-custom", "host", "x-data-parallel-rank", "transfer-encoding"])
    assert allow.allows(b"x-custom")
    assert not allow.allows(b"host")
    assert not allow.allows(b"x-data-parallel-rank")
    assert not allow.allows(b"transfer-encoding")


def test_what_passes_keeps_its_order_and_repetition() -> None:
    headers = [(b"tracestate", b"a"), (b"cookie", b"c"), (b"tracestate", b"b")]
    assert AllowList().passing(headers) == b"tracestate: a\r\ntracestate: b\r\n"


def test_strange_names_do_not_fill_the_memory() -> None:
    allow = AllowList()
    for number in range(10_000):
        allow.allows(b"x-%d" % number)
    assert len(allow._seen) <= 4096
    assert allow.allows(b"x-sgl-late")
