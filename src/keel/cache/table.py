"""Which slot each position of each running request has."""

from __future__ import annotations

import numpy as np
import torch

from keel.core import IntArray


class RequestTable:
    """One row a running request, [rows, context] int32, on the host and on the device.

    On the CPU both are the same memory. On another device, writes are collected and sent with the
    next batch, in one copy.
    """

    def __init__(self, rows: int, context: int, device: torch.device) -> None:
        self._host = np.zeros((rows, context), dtype=np.int32)
        shared = torch.from_numpy(self._host)
        self._device = shared if device.type == "cpu" else shared.to(device)
        self._free = list(range(rows - 1, -1, -1))
        self._dirty: list[tuple[int, int, IntArray]] = []

    @property
    def num_free(self) -> int:
        """Rows that can be taken."""
        return len(self._free)

    def take(self) -> int:
        """A free row."""
        return self._free.pop()

    def give_back(self, row: int) -> None:
        """Free a row."""
        self._free.append(row)

    def read(self, row: int, start: int, stop: int) -> IntArray:
        """Slots of positions `start..stop` of a row, as a copy."""
        return self._host[row, start:stop].astype(np.int64)

    def write(self, row: int, start: int, slots: IntArray) -> None:
        """Set the slots of positions from `start` on."""
        self._host[row, start : start + len(slots)] = slots
        if self._device.device.type != "cpu" and len(slots):
            self._dirty.append((row, start, slots))

    def on_device(self) -> torch.Tensor:
        """The table as the device sees it, up to date."""
        if self._dirty:
            rows = np.concatenate([np.full(len(slots), row) for row, _, slots in self._dirty])
            columns = np.concatenate(
                [np.arange(start, start + len(slots)) for _, start, slots in self._dirty]
            )
            values = np.concatenate([slots for _, _, slots in self._dirty])
            where = torch.from_numpy(np.stack([rows, columns])).to(self._device.device)
            new = torch.from_numpy(values.astype(np.int32)).to(self._device.device)
            self._device[where[0], where[1]] = new
            self._dirty.clear()
        return self._device

    def check_integrity(self) -> None:
        """At idle all rows are free, each once.

        Raises:
            AssertionError: a row is lost or free twice.
        """
        assert sorted(self._free) == list(range(len(self._host))), "rows lost or free twice"
