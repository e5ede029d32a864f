"""Who may begin now, who waits for it, and who is sent away: the router's own limits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from keel.router.load import EVERYTHING, LoadBoard
from keel.router.refusal import Refusal

# How often it is looked, while somebody waits, whether another process has made room.
_TICK_SECONDS = 0.01


@dataclass(frozen=True)
class Limits:
    """What a router may have in hand.

    Args:
        requests: at workers at a time, of all router processes together; None: any number.
        rate: requests begun per second by this process; None: any number.
        burst: that may begin at once after a quiet while, at `rate`.
        queue: that may wait in this process.
        patience: seconds that one waits.
    """

    requests: int | None
    rate: float | None
    burst: float
    queue: int
    patience: float


class Waiter(Protocol):
    """A request that may have to wait."""

    def admitted(self) -> None:
        """Its turn has come."""

    def turned_away(self, refusal: Refusal) -> None:
        """It came too late."""


class Admission:
    """Lets requests begin in the order in which they came.

    Several processes count together on the load board, where nothing is locked: two that look at
    the same moment may both see the last place, so the limit is exceeded by their number at most.
    """

    def __init__(
        self, board: LoadBoard, limits: Limits, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._board, self._limits, self._clock = board, limits, clock
        self._inside: set[Waiter] = set()
        self._waiting: dict[Waiter, float] = {}  # with the time at which it is too late
        self._tokens, self._filled = limits.burst, clock()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    def enter(self, waiter: Waiter) -> bool:
        """Whether a request may begin now. If not, it waits, and is told what becomes of it.

        Raises:
            Refusal: 429; too many wait.
        """
        if not self._waiting and self._room():
            self._take(waiter)
            return True
        limits = self._limits
        if len(self._waiting) >= limits.queue:
            raise Refusal(429, "queue_full", f"{len(self._waiting)} requests wait already")
        self._waiting[waiter] = self._clock() + limits.patience
        self._look_later(_TICK_SECONDS)
        return False

    def leave(self, waiter: Waiter) -> None:
        """A request ended, wherever it was."""
        if waiter in self._inside:
            self._inside.discard(waiter)
            self._board.add(EVERYTHING, -1, 0)
            if self._waiting:
                self._look_later(0)  # not at once: who ends is within its own end
        else:
            self._waiting.pop(waiter, None)

    def _room(self) -> bool:
        limits = self._limits
        if limits.requests is not None and self._board.requests(EVERYTHING) >= limits.requests:
            return False
        if limits.rate is None:
            return True
        now = self._clock()
        grown = self._tokens + (now - self._filled) * limits.rate
        self._tokens, self._filled = min(limits.burst, grown), now
        return self._tokens >= 1

    def _take(self, waiter: Waiter) -> None:
        if self._limits.rate is not None:
            self._tokens -= 1
        self._inside.add(waiter)
        self._board.add(EVERYTHING, 1, 0)

    def _look_later(self, seconds: float) -> None:
        if self._timer is not None:
            if seconds:
                return
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        self._timer = None
        while self._waiting and self._room():
            waiter = next(iter(self._waiting))
            del self._waiting[waiter]
            self._take(waiter)
            waiter.admitted()
        now = self._clock()
        for waiter, too_late in tuple(self._waiting.items()):
            if too_late > now:
                break
            del self._waiting[waiter]
            patience = self._limits.patience
            waiter.turned_away(Refusal(408, "queue_timeout", f"no turn within {patience:g} s"))
        if self._waiting:
            self._look_later(_TICK_SECONDS)
