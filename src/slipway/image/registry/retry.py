"""When to try again: growing, jittered pauses, `Retry-After`, bounded in count and time."""

from __future__ import annotations

import time
from dataclasses import dataclass

# Statuses that may be different the next time. No other 4xx is.
RETRIED = frozenset({408, 429, 500, 502, 503, 504})


@dataclass(frozen=True)
class Retries:
    """Bounds of trying again.

    Attributes:
        attempts: how often in all.
        pause: seconds before the second attempt; doubled for each further one, at most `longest`.
        longest: seconds; a pause that we choose is never longer.
        total: seconds for all pauses of one request. A registry that asks (`Retry-After`) for more
            than is left of it is taken at its word: the request fails at once.
    """

    attempts: int = 5
    pause: float = 0.25
    longest: float = 8.0
    total: float = 180.0


class Backoff:
    """The attempts of one request: counts them and pauses between them."""

    def __init__(self, retries: Retries) -> None:
        self._retries = retries
        self._left = retries.total
        self.attempts = 1

    def wait(self, retry_after: str = "") -> bool:
        """Pause before the next attempt; False, at once, where there is to be none."""
        if self.attempts >= self._retries.attempts:
            return False
        import random

        bounds = self._retries
        pause = min(bounds.pause * 2.0 ** (self.attempts - 1), bounds.longest)
        pause *= random.uniform(0.5, 1.0)
        pause = max(pause, asked_pause(retry_after))
        if pause > self._left:
            return False
        self._left -= pause
        self.attempts += 1
        time.sleep(pause)
        return True


def asked_pause(retry_after: str) -> float:
    """Seconds that a `Retry-After` asks for (RFC 9110, 10.2.3); 0 where it says nothing sensible.

    It is either a number of seconds or a date.
    """
    text = retry_after.strip()
    if text.isdecimal() and text.isascii():
        return float(text[:9])
    if not text:
        return 0.0
    from email.utils import parsedate_to_datetime

    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, OverflowError):
        return 0.0
