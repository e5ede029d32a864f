"""The owner of the worker list."""

from __future__ import annotations

import pytest

from keel.router.fleet import Added, Change, Drained, Fleet, Removed
from keel.router.load import SLOTS, LoadBoard
from keel.router.worker import WorkerSpec

A, B = WorkerSpec("http://a:80"), WorkerSpec("http://b:80")


def made() -> tuple[Fleet, LoadBoard, list[Change]]:
    board, told = LoadBoard(), []
    return Fleet(board, told.append, drain_timeout=1000.0), board, told


def test_each_worker_has_a_slot_of_its_own_and_keeps_it() -> None:
    fleet, _, told = made()
    for spec in (A, B, A):
        fleet.add(spec)
    slots = [change.slot for change in told if isinstance(change, Added)]
    assert slots[0] != slots[1]
    assert slots[0] == slots[2]


def test_a_drained_worker_leaves_when_it_has_nothing_in_hand() -> None:
    fleet, board, told = made()
    fleet.add(A)
    slot = told[0].slot  # type: ignore[union-attr]
    board.add(slot, 1, 1)
    assert fleet.drain(A.url)
    fleet.tick()
    assert told[1:] == [Drained(A.url)]
    board.add(slot, -1, -1)
    fleet.tick()
    assert told[2:] == [Removed(A.url)]
    assert not fleet.drain(A.url)
    assert not fleet.remove(A.url)


def test_a_worker_that_is_added_while_it_drains_stays() -> None:
    fleet, _, told = made()
    fleet.add(A)
    fleet.drain(A.url)
    fleet.add(A)
    fleet.tick()
    assert not any(isinstance(change, Removed) for change in told)


def test_history_brings_a_new_process_up_to_date() -> None:
    fleet, board, told = made()
    fleet.add(A)
    fleet.add(B)
    board.add(told[1].slot, 1, 1)  # type: ignore[union-attr]
    fleet.drain(B.url)
    slots = {change.spec.url: change.slot for change in told if isinstance(change, Added)}
    assert fleet.history() == [
        Added(A, slots[A.url]),
        Added(B, slots[B.url]),
        Drained(B.url),
    ]


def test_there_is_room_for_so_many_and_a_sentence_for_more() -> None:
    fleet, _, _ = made()
    for number in range(SLOTS):
        fleet.add(WorkerSpec(f"http://w{number}:80"))
    with pytest.raises(ValueError, match="no room"):
        fleet.add(A)
    fleet.remove("http://w0:80")
    fleet.add(A)


def test_a_source_that_says_the_same_again_changes_nothing() -> None:
    fleet, _, told = made()
    for _ in range(3):
        fleet.reconcile("file", [A, B])
    assert len(told) == 2
    fleet.reconcile("file", [A, WorkerSpec(B.url, models=("x",))])
    assert len(told) == 3
    fleet.reconcile("file", [A])
    assert told[3:] == [Drained(B.url)]
    fleet.reconcile("file", [A])
    assert len(told) == 4
