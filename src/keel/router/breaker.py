"""A circuit breaker: a worker that fails in a row is left alone for a while, then probed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum


class State(IntEnum):
    """The numbers are those of the metric."""

    CLOSED = 0
    OPEN = 1
    HALF_OPEN = 2


@dataclass(frozen=True)
class BreakerConfig:
    """Thresholds of a breaker; times in seconds.

    Args:
        failures: in a row, each at most `window` after the one before, that open it.
        successes: of probes, that close it.
        open_for: until the first probe.
        enabled: else it is always closed.
    """

    failures: int = 10
    successes: int = 3
    open_for: float = 60.0
    window: float = 120.0
    enabled: bool = True


class Breaker:
    """Admits requests to one worker.

    A request holds a permit from before its dispatch until its end and gives it back exactly once:
    by `succeed`, `fail`, or `release` where its end says nothing about the worker. When half open
    there is one permit. A permit from before the last change of state changes nothing.

    Args:
        changed: called after every change of state.
    """

    __slots__ = (
        "_changed",
        "_clock",
        "_config",
        "_failures",
        "_last_failure",
        "_opened_at",
        "_probing",
        "_state",
        "_successes",
        "_term",
    )

    def __init__(
        self,
        config: BreakerConfig,
        changed: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config, self._changed, self._clock = config, changed, clock
        self._state = State.CLOSED
        self._term = 0  # number of state changes; what a permit is
        self._failures = self._successes = 0
        self._last_failure = self._opened_at = float("-inf")
        self._probing = False

    @property
    def state(self) -> State:
        """An open breaker whose time is over is half open."""
        if self._state is State.OPEN and self._clock() - self._opened_at >= self._config.open_for:
            self._enter(State.HALF_OPEN)
        return self._state

    @property
    def failures(self) -> int:
        """In a row, while closed."""
        return self._failures

    @property
    def admits(self) -> bool:
        """Whether `acquire` would give a permit."""
        if self._state is State.CLOSED:
            return True
        return self.state is State.HALF_OPEN and not self._probing

    def acquire(self) -> int | None:
        """A permit, or None when the worker is to be left alone."""
        if self._state is not State.CLOSED:
            if not self.admits:
                return None
            self._probing = True
        return self._term

    def succeed(self, permit: int) -> None:
        """The worker did what it should."""
        if permit != self._term:
            return
        if self._state is State.CLOSED:
            self._failures = 0
            return
        self._probing = False
        self._successes += 1
        if self._successes >= self._config.successes:
            self._enter(State.CLOSED)

    def fail(self, permit: int) -> None:
        """The worker did not."""
        if permit != self._term or not self._config.enabled:
            return
        if self._state is State.HALF_OPEN:
            self._enter(State.OPEN)
            return
        now = self._clock()
        in_row = now - self._last_failure <= self._config.window
        self._failures = self._failures + 1 if in_row else 1
        self._last_failure = now
        if self._failures >= self._config.failures:
            self._enter(State.OPEN)

    def release(self, permit: int) -> None:
        """The end of the request says nothing about the worker."""
        if permit == self._term:
            self._probing = False

    def recovered(self) -> None:
        """Something else than a request shows that the worker is back: probe it now."""
        if self._state is State.OPEN:
            self._enter(State.HALF_OPEN)

    def _enter(self, state: State) -> None:
        self._state = state
        self._term += 1
        self._failures = self._successes = 0
        self._probing = False
        if state is State.OPEN:
            self._opened_at = self._clock()
        self._changed()
