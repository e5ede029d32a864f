"""The prefix tree: longest match, splits, locks, eviction; against a plain dictionary."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from keel.cache.radix import Node, RadixCache


def ids(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def test_the_longest_prefix_is_found_inside_an_edge() -> None:
    tree = RadixCache()
    assert tree.insert(ids(1, 2, 3, 4), ids(11, 12, 13, 14)) == 0
    assert tree.match(ids(1, 2, 9)).slots.tolist() == [11, 12]
    assert tree.match(ids(1, 2, 3, 4, 5)).slots.tolist() == [11, 12, 13, 14]
    assert tree.match(ids(2)).slots.tolist() == []
    tree.check_integrity()


def test_the_tree_keeps_its_own_slots_for_what_it_knows() -> None:
    tree = RadixCache()
    tree.insert(ids(1, 2, 3), ids(11, 12, 13))
    assert tree.insert(ids(1, 2, 7, 8), ids(21, 22, 23, 24)) == 2
    assert tree.match(ids(1, 2, 7, 8)).slots.tolist() == [11, 12, 23, 24]
    assert tree.evictable_size == 5
    tree.check_integrity()


def test_namespaces_share_nothing() -> None:
    tree = RadixCache()
    tree.insert(ids(1, 2), ids(11, 12), "adapter-a")
    assert tree.match(ids(1, 2)).slots.tolist() == []
    assert tree.match(ids(1, 2), "adapter-a").slots.tolist() == [11, 12]


def test_locked_paths_stay_and_the_oldest_leaf_goes_first() -> None:
    tree = RadixCache()
    tree.insert(ids(1, 2, 3), ids(11, 12, 13))
    tree.insert(ids(1, 2, 4), ids(0, 0, 14))
    tree.insert(ids(5, 6), ids(15, 16))
    held = tree.match(ids(1, 2, 4)).node
    tree.lock(held)
    assert (tree.protected_size, tree.evictable_size) == (3, 3)
    assert tree.evict(1).tolist() == [13]
    assert sorted(tree.evict(100).tolist()) == [15, 16]
    assert tree.match(ids(1, 2, 4)).slots.tolist() == [11, 12, 14]
    tree.unlock(held)
    assert sorted(tree.evict(100).tolist()) == [11, 12, 14]
    tree.check_integrity()


def test_a_long_leaf_gives_only_its_tail() -> None:
    tree = RadixCache()
    tree.insert(ids(*range(10)), ids(*range(100, 110)))
    assert tree.evict(3).tolist() == [107, 108, 109]
    assert len(tree.match(ids(*range(10))).slots) == 7
    tree.check_integrity()


def test_a_split_edge_keeps_its_locks() -> None:
    tree = RadixCache()
    tree.insert(ids(1, 2, 3, 4), ids(11, 12, 13, 14))
    held = tree.match(ids(1, 2, 3, 4)).node
    tree.lock(held)
    tree.match(ids(1, 2))  # splits the edge
    tree.check_integrity()
    assert tree.evict(10).tolist() == []
    tree.unlock(held)
    assert tree.evictable_size == 4
    assert len(tree.evict(10)) == 4


token_lists = st.lists(st.integers(0, 2), min_size=1, max_size=8)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(token_lists, st.sampled_from(["insert", "lock", "unlock", "evict"]))))
def test_it_agrees_with_a_dictionary_of_prefixes(
    steps: list[tuple[list[int], str]],
) -> None:
    tree, fresh = RadixCache(), iter(range(1, 10**6))
    known: dict[tuple[int, ...], int] = {(): 0}
    locked: list[Node] = []
    for tokens, action in steps:
        key = ids(*tokens)
        if action == "insert":
            slots = ids(*(next(fresh) for _ in tokens))
            done = tree.insert(key, slots)
            longest = max(
                (n for n in range(len(tokens) + 1) if tuple(tokens[:n]) in known), default=0
            )
            assert done == longest
            for n in range(done, len(tokens)):
                known[tuple(tokens[: n + 1])] = int(slots[n])
        elif action == "lock":
            locked.append(tree.match(key).node)
            tree.lock(locked[-1])
        elif action == "unlock" and locked:
            tree.unlock(locked.pop())
        elif action == "evict":
            gone = set(tree.evict(len(tokens)).tolist())
            known = {prefix: slot for prefix, slot in known.items() if slot not in gone}
        expected = [
            known[tuple(tokens[:n])]
            for n in range(1, len(tokens) + 1)
            if tuple(tokens[:n]) in known
        ]
        assert tree.match(key).slots.tolist() == expected
        assert sorted(tree.all_slots().tolist()) == sorted(known.values())[1:]
        tree.check_integrity()
