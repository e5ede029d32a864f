"""Slots: handed out once, in runs, taken back once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keel.cache.allocator import SlotAllocator


def test_a_fresh_prompt_is_a_run() -> None:
    slots = SlotAllocator(100).allocate(10)
    assert np.array_equal(np.diff(slots), np.ones(9))
    assert slots[0] >= 1


def test_an_answer_grows_behind_its_prompt_with_neighbours_around() -> None:
    allocator = SlotAllocator(1000)
    prompts = [allocator.allocate(20) for _ in range(4)]
    for _ in range(30):
        prompts = [
            np.concatenate([slots, allocator.allocate(1, after=int(slots[-1]))])
            for slots in prompts
        ]
    assert all(np.array_equal(np.diff(slots), np.ones(49)) for slots in prompts)


def test_pieces_are_used_when_no_run_is_left() -> None:
    allocator = SlotAllocator(10)
    everything = allocator.allocate(10)
    allocator.free(everything[::2])
    assert sorted(allocator.allocate(5).tolist()) == sorted(everything[::2].tolist())
    assert allocator.num_free == 0


def test_asking_too_much_and_freeing_twice_are_errors() -> None:
    allocator = SlotAllocator(4)
    slots = allocator.allocate(3)
    with pytest.raises(ValueError, match="2 slots asked, 1 free"):
        allocator.allocate(2)
    allocator.free(slots)
    with pytest.raises(ValueError, match="free already"):
        allocator.free(slots[1:2])
    with pytest.raises(ValueError, match="not in 1"):
        allocator.free(np.array([0]))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 12), st.booleans(), st.randoms()), max_size=60))
def test_every_slot_is_free_or_held_once(
    steps: list[tuple[int, bool, object]],
) -> None:
    allocator, held = SlotAllocator(64), np.empty(0, dtype=np.int64)
    for count, take, random in steps:
        if take and count <= allocator.num_free:
            after = int(held[-1]) if len(held) and count % 2 else 0
            held = np.concatenate([held, allocator.allocate(count, after=after)])
        elif len(held):
            order = list(range(len(held)))
            random.shuffle(order)  # type: ignore[attr-defined]
            allocator.free(held[order[:count]])
            held = held[order[count:]]
        everything = np.sort(np.concatenate([held, allocator.free_slots()]))
        assert np.array_equal(everything, np.arange(1, 65))
        assert allocator.num_free == 64 - len(held)
