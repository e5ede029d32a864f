"""Each policy chooses as its name says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keel.args.router_values import POLICIES
from keel.router.breaker import BreakerConfig
from keel.router.load import LoadBoard
from keel.router.policies import Ask, PolicyConfig, make_policy
from keel.router.policies.cache_aware import CacheAware
from keel.router.policies.prefixes import PrefixTree, chain
from keel.router.worker import Worker, WorkerSpec, WorkerTable


class NoUpstream:
    def send(self, call: Any, sink: Any) -> Any:
        raise AssertionError("nothing is sent here")

    def close_idle(self) -> None:
        pass

    def sweep(self) -> None:
        pass


def table_of(count: int, **fields: Any) -> WorkerTable:
    table = WorkerTable(LoadBoard(), BreakerConfig(), lambda spec: NoUpstream())
    for number in range(count):
        table.add(WorkerSpec(f"http://w{number}:80", **fields), number)
    return table


def workers(count: int) -> list[Worker]:
    return list(table_of(count))


def picks(name: str, pool: Sequence[Worker], times: int, ask: Ask | None = None) -> Counter[str]:
    policy = make_policy(name, PolicyConfig())
    return Counter(policy.pick(pool, ask or Ask()).url for _ in range(times))


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_uses_every_worker_of_equals_and_copes_with_one(name: str) -> None:
    pool = workers(3)
    policy = make_policy(name, PolicyConfig())
    seen = set()
    for number in range(200):
        worker = policy.pick(pool, Ask(b"%d" % number * 100, b"%d" % number))
        worker.begin(1)
        seen.add(worker)
    assert len(seen) == 3
    assert policy.pick(pool[:1], Ask()) is pool[0]


def test_round_robin_is_even() -> None:
    assert set(picks("round_robin", workers(3), 30).values()) == {10}


def test_least_load_takes_the_one_with_least_requests_then_tokens() -> None:
    pool = workers(3)
    pool[0].begin(1)
    pool[1].begin(1)
    assert picks("least_load", pool, 5) == {pool[2].url: 5}
    pool[2].begin(100)
    assert pool[2].url not in picks("least_load", pool, 10)


def test_power_of_two_never_takes_the_most_loaded() -> None:
    pool = workers(3)
    pool[1].begin(1)
    assert pool[1].url not in picks("power_of_two", pool, 200)


def test_consistent_hashing_keeps_a_key_where_it_is_and_moves_only_what_it_must() -> None:
    pool = workers(5)
    policy = make_policy("consistent_hashing", PolicyConfig())
    keys = [b"session-%d" % number for number in range(1000)]
    before = {key: policy.pick(pool, Ask(key=key)) for key in keys}
    assert all(policy.pick(list(reversed(pool)), Ask(key=key)) is before[key] for key in keys)
    after = {key: policy.pick(pool[:-1], Ask(key=key)) for key in keys}
    moved = [key for key in keys if after[key] is not before[key]]
    assert {before[key] for key in moved} == {pool[-1]}
    assert 100 < len(moved) < 300


def test_consistent_hashing_takes_turns_without_a_key() -> None:
    assert set(picks("consistent_hashing", workers(3), 30).values()) == {10}


def test_cache_aware_sends_a_prefix_to_who_knows_it() -> None:
    pool = workers(3)
    policy = CacheAware(0.3, 64, 1.5, 2**20)
    system = b"You are a helpful assistant. " * 50
    first = policy.pick(pool, Ask(system + b"hello"))
    for number in range(20):
        assert policy.pick(pool, Ask(system + b"question %d" % number)) is first
    others = {policy.pick(pool, Ask(b"%d" % number * 3000)) for number in range(8)}
    assert others - {first}


def test_cache_aware_balances_when_loads_differ_too_much() -> None:
    pool = workers(2)
    policy = CacheAware(0.3, 8, 1.5, 2**20)
    prompt = b"x" * 1000
    known = policy.pick(pool, Ask(prompt))
    other = pool[1 - pool.index(known)]
    for _ in range(8):
        known.begin(1)
    assert policy.pick(pool, Ask(prompt)) is known  # 8 is not above the threshold
    known.begin(1)
    assert policy.pick(pool, Ask(prompt)) is other


def test_cache_aware_forgets_a_worker_that_left() -> None:
    pool = workers(2)
    policy = CacheAware(0.3, 64, 1.5, 2**20)
    known = policy.pick(pool, Ask(b"x" * 1000))
    policy.forget(known)
    assert policy._tree(known).size == 0


_prompts = st.lists(st.binary(max_size=3000), min_size=1, max_size=12)


@settings(max_examples=60)
@given(_prompts, st.integers(1024, 8192))
def test_a_prefix_tree_keeps_its_bounds_and_never_matches_more_than_is_shared(
    prompts: list[bytes], capacity: int
) -> None:
    tree = PrefixTree(capacity)
    for prompt in prompts:
        tree.insert(chain(prompt))
        tree.check_integrity()
    for prompt in prompts:
        shared = max(common(prompt, other) for other in prompts)
        assert tree.match(chain(prompt)) <= shared


def common(one: bytes, other: bytes) -> int:
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count


def test_a_prefix_tree_matches_what_it_has_seen_and_forgets_ends_before_beginnings() -> None:
    tree = PrefixTree(2048)
    prompt = bytes(range(256)) * 8
    tree.insert(chain(prompt))
    assert tree.match(chain(prompt)) == 2048
    assert tree.match(chain(prompt[:1000] + b"other" * 100)) == 960
    tree.insert(chain(b"y" * 512))
    assert tree.match(chain(b"y" * 512)) == 512
    assert tree.match(chain(prompt)) == 2048 - 512


def test_a_megabyte_of_prompt_is_a_few_hundred_nodes() -> None:
    assert 400 < len(chain(b"x" * 2**20)) < 1000
