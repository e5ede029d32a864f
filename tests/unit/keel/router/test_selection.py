"""From model, length and breaker to the worker."""

from __future__ import annotations

from typing import Any

import pytest

from keel.router.breaker import BreakerConfig
from keel.router.load import LoadBoard
from keel.router.policies import Ask, PolicyConfig
from keel.router.refusal import Refusal
from keel.router.selection import PolicyChoice, Selector, in_bucket, warmth
from keel.router.worker import Role, WorkerSpec, WorkerTable


class NoUpstream:
    def close_idle(self) -> None:
        pass


def made(
    *specs: WorkerSpec, policy: str = "round_robin", by_model: dict[str, str] | None = None
) -> tuple[WorkerTable, Selector]:
    def no_upstream(_: WorkerSpec) -> Any:
        return NoUpstream()

    table = WorkerTable(LoadBoard(), BreakerConfig(failures=1), no_upstream, slow_start=100.0)
    for number, spec in enumerate(specs):
        table.add(spec, number)
    return table, Selector(table, PolicyChoice(policy, {}, by_model or {}), PolicyConfig())


def chosen(selector: Selector, model: str = "", times: int = 12, **how: Any) -> set[str]:
    found = set()
    for _ in range(times):
        worker, permit = selector.choose(how.pop("role", Role.PLAIN), model, Ask(), **how)
        worker.breaker.release(permit)
        found.add(worker.url)
    return found


A, B, C = "http://a:80", "http://b:80", "http://c:80"


def test_a_model_goes_to_those_who_serve_it() -> None:
    _, selector = made(WorkerSpec(A, models=("x",)), WorkerSpec(B, models=("y",)))
    assert chosen(selector, "x") == {A}
    assert chosen(selector, "y") == {B}


def test_a_model_that_nobody_serves_is_refused_only_where_models_differ() -> None:
    _, selector = made(WorkerSpec(A, models=("x",)), WorkerSpec(B, models=("y",)))
    with pytest.raises(Refusal) as refusal:
        selector.choose(Role.PLAIN, "z", Ask())
    assert (refusal.value.status, refusal.value.code) == (404, "model_not_found")
    _, selector = made(WorkerSpec(A, models=("x",)), WorkerSpec(B, models=("x",)))
    assert chosen(selector, "z") == {A, B}  # the engine says it in its words


def test_a_worker_that_has_not_said_its_models_serves_what_nobody_else_does() -> None:
    _, selector = made(WorkerSpec(A, models=("x",)), WorkerSpec(B, models=("y",)), WorkerSpec(C))
    assert chosen(selector, "z") == {C}


def test_each_model_can_have_its_policy() -> None:
    _, selector = made(
        WorkerSpec(A, models=("x",)),
        WorkerSpec(B, models=("y",)),
        by_model={"x": "cache_aware"},
    )
    assert selector.policy(Role.PLAIN, "x").name == "cache_aware"
    assert selector.policy(Role.PLAIN, "y").name == "round_robin"
    assert selector.policy(Role.PLAIN, "x") is selector.policy(Role.PLAIN, "x")


def test_who_is_ill_draining_or_excluded_is_not_chosen() -> None:
    table, selector = made(WorkerSpec(A), WorkerSpec(B), WorkerSpec(C))
    a, _, c = table
    assert chosen(selector) == {A, B, C}
    a.healthy = False
    table.changed()
    table.drain(B)
    assert chosen(selector) == {C}
    with pytest.raises(Refusal) as refusal:
        selector.choose(Role.PLAIN, "", Ask(), without=[c])
    assert refusal.value.code == "no_available_workers"
    a.healthy = True
    table.changed()
    assert chosen(selector) == {A, C}
    table.remove(A)
    assert chosen(selector) == {C}


def test_an_open_breaker_is_passed_over_and_named_where_there_is_no_other() -> None:
    table, selector = made(WorkerSpec(A), WorkerSpec(B))
    a, b = table
    for worker in (a, b):
        assert chosen(selector) >= {worker.url}
        worker.breaker.fail(worker.breaker.acquire())
        if worker is a:
            assert chosen(selector) == {B}
    with pytest.raises(Refusal) as refusal:
        selector.choose(Role.PLAIN, "", Ask())
    assert refusal.value.code == "breaker_open"


def test_roles_are_pools_of_their_own() -> None:
    _, selector = made(WorkerSpec(A, Role.PREFILL), WorkerSpec(B, Role.DECODE))
    assert chosen(selector, role=Role.PREFILL, times=1) == {A}
    assert chosen(selector, role=Role.DECODE, times=1) == {B}


@pytest.mark.parametrize(
    ("length", "url"), [(1, A), (100, A), (101, B), (1000, B), (1001, C), (10**9, C)]
)
def test_the_smallest_bucket_that_fits_is_chosen(length: int, url: str) -> None:
    _, selector = made(
        WorkerSpec(C, bucket=float("inf")), WorkerSpec(B, bucket=1000), WorkerSpec(A, bucket=100)
    )
    assert chosen(selector, length=length) == {url}


def test_a_request_longer_than_all_goes_to_those_without_a_limit_or_the_largest() -> None:
    _, selector = made(WorkerSpec(A, bucket=100), WorkerSpec(B))
    assert chosen(selector, length=50) == {A}
    assert chosen(selector, length=500) == {B}
    _, selector = made(WorkerSpec(A, bucket=100), WorkerSpec(B, bucket=200))
    assert chosen(selector, length=500) == {B}


def test_the_other_half_of_a_request_stays_in_its_bucket() -> None:
    table, _ = made(WorkerSpec(A, bucket=100), WorkerSpec(B, bucket=1000))
    assert [w.url for w in in_bucket(list(table), 1, 1000)] == [B]


def test_a_worker_that_joins_gets_its_share_slowly() -> None:
    table, selector = made(WorkerSpec(A))
    table.started = True
    new = table.add(WorkerSpec(B), 7)
    counts = {A: 0, B: 0}
    for _ in range(400):
        worker, permit = selector.choose(Role.PLAIN, "", Ask())
        worker.breaker.release(permit)
        counts[worker.url] += 1
    assert 0 < counts[B] < 100
    assert warmth(new, new.warm_since) == pytest.approx(0.1)
    assert warmth(new, new.warm_since + 50) == pytest.approx(0.5)
    assert warmth(new, new.warm_at) == 1.0
    only, permit = selector.choose(Role.PLAIN, "", Ask(), without=[table.get(A)])
    assert only is new  # cold, but the only one
