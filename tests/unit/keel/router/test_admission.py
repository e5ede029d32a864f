"""Limits of the router: who begins, who waits, who is sent away."""

from __future__ import annotations

import asyncio
import os

import pytest

from keel.router.admission import Admission, Limits
from keel.router.load import EVERYTHING, LoadBoard, shared_memory
from keel.router.refusal import Refusal
from support.routing import until


class Request:
    """Notes what becomes of it."""

    def __init__(self) -> None:
        self.fate = ""

    def admitted(self) -> None:
        self.fate = "admitted"

    def turned_away(self, refusal: Refusal) -> None:
        self.fate = refusal.code


def limits(
    requests: int | None = None,
    rate: float | None = None,
    burst: float = 1,
    queue: int = 100,
    patience: float = 60,
) -> Limits:
    return Limits(requests, rate, burst, queue, patience)


def test_places_are_given_in_the_order_of_coming() -> None:
    async def run() -> None:
        board = LoadBoard()
        admission = Admission(board, limits(requests=2))
        inside, waiting = [Request(), Request()], [Request() for _ in range(3)]
        assert [admission.enter(one) for one in inside] == [True, True]
        assert [admission.enter(one) for one in waiting] == [False] * 3
        assert (admission.waiting, board.requests(EVERYTHING)) == (3, 2)
        admission.leave(inside[0])
        await until(lambda: waiting[0].fate == "admitted")
        assert [one.fate for one in waiting[1:]] == ["", ""]
        admission.leave(waiting[1])  # its client went away
        admission.leave(inside[1])
        await until(lambda: waiting[2].fate == "admitted")
        assert waiting[1].fate == ""
        for one in (waiting[0], waiting[2]):
            admission.leave(one)
            admission.leave(one)  # a second time does nothing
        assert (admission.waiting, board.requests(EVERYTHING)) == (0, 0)

    asyncio.run(run())


def test_a_full_queue_and_a_long_wait_send_away() -> None:
    async def run() -> None:
        admission = Admission(LoadBoard(), limits(requests=1, queue=1, patience=0.02))
        first, second = Request(), Request()
        assert admission.enter(first)
        assert not admission.enter(second)
        with pytest.raises(Refusal) as full:
            admission.enter(Request())
        assert (full.value.status, full.value.code) == (429, "queue_full")
        await until(lambda: second.fate == "queue_timeout")
        assert admission.waiting == 0

    asyncio.run(run())


def test_a_rate_lets_a_burst_begin_and_then_one_after_another() -> None:
    async def run() -> None:
        now = 100.0
        admission = Admission(LoadBoard(), limits(rate=10, burst=2), clock=lambda: now)
        requests = [Request() for _ in range(4)]
        assert [admission.enter(one) for one in requests] == [True, True, False, False]
        await asyncio.sleep(0.03)
        assert [one.fate for one in requests[2:]] == ["", ""]
        now += 0.11
        await until(lambda: requests[2].fate == "admitted")
        await asyncio.sleep(0.03)
        assert requests[3].fate == ""
        now += 10  # a quiet while fills no more than the burst
        await until(lambda: requests[3].fate == "admitted")
        assert [admission.enter(Request()) for _ in range(2)] == [True, False]

    asyncio.run(run())


def test_processes_count_together() -> None:
    async def run() -> None:
        memory = shared_memory(2)
        one, other = (
            Admission(LoadBoard(2, column, memory), limits(requests=1)) for column in range(2)
        )
        here, there = Request(), Request()
        assert one.enter(here)
        assert not other.enter(there)
        one.leave(here)
        await until(lambda: there.fate == "admitted")  # nobody told it; it looks
        os.close(memory)

    asyncio.run(run())
