"""How much each worker has in hand, counted by every router process and visible to all."""

from __future__ import annotations

import mmap
import os

# Workers of one router, at most.
SLOTS = 1024
# The row that counts what router processes have in hand at all workers.
EVERYTHING = SLOTS
_ROWS = SLOTS + 1
_CELL = 8


class LoadBoard:
    """A table in shared memory: per worker (slot) and process, requests and prompt tokens in hand.

    Each process writes only its own column, so there is nothing to lock; a sum over columns may be
    older than its newest part by one request.

    Args:
        processes: columns.
        column: this process's own, zeroed; None only reads.
        descriptor: of the memory, as `shared_memory` made it; None: of this process alone.
    """

    def __init__(
        self, processes: int = 1, column: int | None = 0, descriptor: int | None = None
    ) -> None:
        self._processes, self._column = processes, column or 0
        size = _ROWS * processes * 2 * _CELL
        self._memory = mmap.mmap(-1 if descriptor is None else descriptor, size)
        self._cells = memoryview(self._memory).cast("q")
        self._single = processes == 1
        if column is not None:
            for slot in range(_ROWS):
                self.clear(slot)

    def _at(self, slot: int) -> int:
        return (slot * self._processes + self._column) * 2

    def clear(self, slot: int) -> None:
        """This process has nothing in hand there."""
        at = self._at(slot)
        self._cells[at] = self._cells[at + 1] = 0

    def add(self, slot: int, requests: int, tokens: int) -> None:
        """Count what begins, or with negative numbers what ends."""
        at = self._at(slot)
        self._cells[at] += requests
        self._cells[at + 1] += tokens

    def own_requests(self, slot: int) -> int:
        """Of this process."""
        return self._cells[self._at(slot)]

    def requests(self, slot: int) -> int:
        """Of all processes."""
        if self._single:
            return self._cells[slot * 2]
        first = slot * self._processes * 2
        return sum(self._cells[first : first + self._processes * 2 : 2])

    def tokens(self, slot: int) -> int:
        """Of all processes."""
        if self._single:
            return self._cells[slot * 2 + 1]
        first = slot * self._processes * 2
        return sum(self._cells[first + 1 : first + self._processes * 2 : 2])


def shared_memory(processes: int) -> int:
    """A descriptor of zeroed memory for the boards of so many processes."""
    descriptor = os.memfd_create("keel-router-load")
    os.ftruncate(descriptor, _ROWS * processes * 2 * _CELL)
    return descriptor
