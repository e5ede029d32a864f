"""Loads that processes count apart and see together."""

from __future__ import annotations

import os

from keel.router.load import LoadBoard, shared_memory


def test_columns_add_up_and_each_process_has_its_own() -> None:
    memory = shared_memory(3)
    boards = [LoadBoard(3, column, memory) for column in range(3)]
    reader = LoadBoard(3, None, memory)
    for number, board in enumerate(boards):
        board.add(7, number + 1, 10 * (number + 1))
    assert reader.requests(7) == boards[0].requests(7) == 6
    assert reader.tokens(7) == 60
    assert [board.own_requests(7) for board in boards] == [1, 2, 3]
    assert reader.requests(6) == reader.requests(8) == 0
    boards[1].add(7, -2, -20)
    assert reader.requests(7) == 4
    os.close(memory)


def test_a_process_that_starts_again_begins_with_nothing_in_hand() -> None:
    memory = shared_memory(2)
    LoadBoard(2, 0, memory).add(1, 5, 5)
    LoadBoard(2, 1, memory).add(1, 3, 3)
    again = LoadBoard(2, 0, memory)
    assert again.requests(1) == 3
    os.close(memory)


def test_one_process_needs_no_sum() -> None:
    board = LoadBoard()
    board.add(0, 2, 30)
    assert (board.requests(0), board.tokens(0), board.own_requests(0)) == (2, 30, 2)
    board.clear(0)
    assert board.requests(0) == 0
