"""Who owns which slot, through admission, growth, sharing and release."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from keel.cache.manager import CacheManager
from keel.cache.radix import Node, RadixCache
from keel.cache.table import RequestTable

CPU = torch.device("cpu")


@dataclass
class Holder:
    ids: list[int] = field(default_factory=list)
    namespace: str = ""
    skip_cache_insert: bool = False
    row: int = -1
    num_computed: int = 0
    num_shared: int = 0
    node: Node | None = None


def make(prefixes: bool = True, tokens: int = 40) -> tuple[CacheManager, RequestTable]:
    table = RequestTable(4, 64, CPU)
    return CacheManager(tokens, table, RadixCache() if prefixes else None), table


def compute(cache: CacheManager, request: Holder, count: int) -> None:
    cache.extend(request, count)
    request.num_computed += count


def test_the_last_token_is_always_computed() -> None:
    cache, _ = make()
    first, again = Holder([1, 2, 3]), Holder([1, 2, 3])
    cache.admit(first)
    compute(cache, first, 3)
    cache.release(first)
    cache.admit(again)
    assert again.num_computed == 2
    cache.release(again)
    cache.check_integrity()


def test_a_shared_prefix_is_stored_once() -> None:
    cache, table = make()
    one, two = Holder([*range(10), 77]), Holder([*range(10), 88])
    for request in (one, two):  # both compute the prefix: neither knew of the other
        cache.admit(request)
        compute(cache, request, 11)
    assert cache.num_available == 40 - 22
    cache.share(one)
    cache.share(two)
    assert cache.num_available == 40 - 12
    assert table.read(one.row, 0, 10).tolist() == table.read(two.row, 0, 10).tolist()
    assert two.num_shared == 11
    cache.release(one)
    cache.release(two)
    cache.check_integrity()
    assert cache.num_evictable == 12


def test_memory_comes_from_old_prefixes_but_not_from_used_ones() -> None:
    cache, _ = make(tokens=20)
    old, used, new = Holder([*range(10)]), Holder([*range(50, 58)]), Holder([*range(70, 82)])
    cache.admit(old)
    compute(cache, old, 10)
    cache.release(old)
    cache.admit(used)
    compute(cache, used, 8)
    cache.share(used)
    assert cache.num_available == 12
    cache.admit(new)
    compute(cache, new, 12)
    assert cache.num_evictable == 0
    with pytest.raises(ValueError, match="1 slots asked, 0 free"):
        cache.extend(new, 1)
    cache.release(new)
    cache.release(used)
    cache.check_integrity()


@pytest.mark.parametrize("prefixes", [True, False])
def test_a_request_that_shares_nothing_leaves_nothing(prefixes: bool) -> None:
    cache, _ = make(prefixes)
    request = Holder([1, 2, 3, 4], skip_cache_insert=True)
    cache.admit(request)
    compute(cache, request, 4)
    cache.share(request)
    cache.release(request)
    cache.check_integrity()
    assert (cache.num_available, cache.num_evictable) == (40, 0)


def test_lost_slots_and_rows_are_noticed() -> None:
    cache, table = make()
    request = Holder([1, 2, 3])
    cache.admit(request)
    with pytest.raises(AssertionError, match="rows lost"):
        cache.check_integrity()
    compute(cache, request, 3)
    table.give_back(request.row)
    cache._prefixes = None
    with pytest.raises(AssertionError, match="slots lost"):
        cache.check_integrity()
