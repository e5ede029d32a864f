"""Which slots of the KV pool are free."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import numpy as np

from keel.core import IntArray


class SlotAllocator:
    """Hands out slots `1..num_tokens`, in runs where it can.

    Attention reads a run of slots as a view and anything else by gathering, so a prompt is placed
    in the middle of the largest gap, with room to grow behind it, and a decode takes the slot
    after its last one when that is free.

    Invariant: `_starts[i] < _ends[i] < _starts[i + 1]`: gaps are sorted and never touch.
    """

    def __init__(self, num_tokens: int) -> None:
        self._num_tokens = num_tokens
        self.reset()

    def reset(self) -> None:
        """All slots are free."""
        self._starts, self._ends = [1], [self._num_tokens + 1]
        self._free = self._num_tokens

    @property
    def num_free(self) -> int:
        """Slots that can be handed out."""
        return self._free

    def allocate(self, count: int, after: int = 0) -> IntArray:
        """Hand out `count` slots.

        Args:
            after: the slot that they should follow, 0 for a fresh start.

        Raises:
            ValueError: fewer are free; a caller's error.
        """
        if count > self._free:
            raise ValueError(f"{count} slots asked, {self._free} free")
        pieces = []
        left = count
        if after and (size := self._room_at(after + 1)):
            taken = min(size, left)
            pieces.append(self._take(after + 1, taken))
            left -= taken
        while left:
            sizes = [end - start for start, end in zip(self._starts, self._ends, strict=True)]
            largest = max(range(len(sizes)), key=sizes.__getitem__)
            start, size = self._starts[largest], sizes[largest]
            taken = min(size, left)
            if start > 1 and taken * 2 <= size:
                start += (size - taken) // 2  # whoever lies before the gap can grow too
            pieces.append(self._take(start, taken))
            left -= taken
        return pieces[0] if len(pieces) == 1 else np.concatenate([*pieces, _NONE])

    def free(self, slots: IntArray) -> None:
        """Take slots back.

        Raises:
            ValueError: a slot was free already, or is none of ours; a caller's error.
        """
        if not len(slots):
            return
        order = np.sort(slots)
        breaks = np.flatnonzero(np.diff(order) != 1)
        for first, last in zip(
            order[np.concatenate([[0], breaks + 1])],
            order[np.concatenate([breaks, [len(order) - 1]])],
            strict=True,
        ):
            self._give_back(int(first), int(last) + 1)
        self._free += len(slots)

    def free_slots(self) -> IntArray:
        """All free slots, in order."""
        runs = [np.arange(a, b) for a, b in zip(self._starts, self._ends, strict=True)]
        return np.concatenate([_NONE, *runs])

    def _room_at(self, slot: int) -> int:
        """Free slots in a row from `slot`."""
        index = bisect_right(self._starts, slot) - 1
        return max(0, self._ends[index] - slot) if index >= 0 else 0

    def _take(self, start: int, count: int) -> IntArray:
        index = bisect_right(self._starts, start) - 1
        gap_start, gap_end = self._starts[index], self._ends[index]
        stop = start + count
        kept = [(a, b) for a, b in ((gap_start, start), (stop, gap_end)) if a < b]
        self._starts[index : index + 1] = [a for a, _ in kept]
        self._ends[index : index + 1] = [b for _, b in kept]
        self._free -= count
        return np.arange(start, stop)

    def _give_back(self, start: int, stop: int) -> None:
        if start < 1 or stop > self._num_tokens + 1:
            raise ValueError(f"slots {start}..{stop - 1} are not in 1..{self._num_tokens}")
        index = bisect_left(self._starts, start)
        before = index > 0 and self._ends[index - 1] >= start
        after = index < len(self._starts) and self._starts[index] <= stop
        if (before and self._ends[index - 1] > start) or (after and self._starts[index] < stop):
            raise ValueError(f"slots {start}..{stop - 1} were free already")
        first = index - 1 if before else index
        last = index + 1 if after else index
        low = self._starts[first] if before else start
        high = self._ends[index] if after else stop
        self._starts[first:last] = [low]
        self._ends[first:last] = [high]


_NONE = np.empty(0, dtype=np.int64)
