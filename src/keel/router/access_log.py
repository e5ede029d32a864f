"""The access log: a line per request, written a moment later and many at a time."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import re
import time

from keel.router.outcome import Record

_PLAIN = re.compile(r"[A-Za-z0-9_./:@+,\-\[\]]+").fullmatch
_EMPTY = '""'
_FLUSH_SECONDS = 0.05
_FLUSH_LINES = 1000


@functools.lru_cache(maxsize=4096)
def quoted(text: str) -> str:
    """A value of a logfmt line; what a client said cannot end the value or the line."""
    return text if _PLAIN(text) else json.dumps(text)


@functools.lru_cache(maxsize=4096)
def _same(worker: str, model: str, stream: bool, outcome: str, status: int, route: str) -> str:
    """What is the same in many lines."""
    return (
        f" worker={worker or _EMPTY} model={quoted(model)} stream={'true' if stream else 'false'}"
        f" outcome={outcome} status={status} route={quoted(route)}"
    )


class AccessLog:
    """Lines in logfmt.

    Args:
        descriptor: of an open file; it is not closed here.
    """

    def __init__(self, descriptor: int = 2, *, enabled: bool = True) -> None:
        self._descriptor, self._enabled = descriptor, enabled
        self._lines: list[str] = []
        self._timer: asyncio.TimerHandle | None = None
        self._second, self._stamp = 0, ""

    def write(self, record: Record) -> None:
        """Log a request."""
        if not self._enabled:
            return
        now = time.time()
        second = int(now)
        if second != self._second:
            self._second = second
            self._stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        r = record
        request_id = r.request_id if _PLAIN(r.request_id) else json.dumps(r.request_id)
        same = _same(r.worker, r.model, r.stream, r.outcome, r.status, r.route)
        line = (
            f"time={self._stamp}.{int((now - second) * 1000):03d}Z msg=request"
            f" request_id={request_id} engine_rid={r.engine_rid or _EMPTY}{same}"
            f" latency_ms={r.latency * 1e3:.2f} attempts={r.attempts}"
        )
        if r.error:
            line += f" error={quoted(r.error)}"
        self._lines.append(line)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_FLUSH_SECONDS, self.flush)
        elif len(self._lines) >= _FLUSH_LINES:
            self.flush()

    def flush(self) -> None:
        """Write what is there."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._lines:
            return
        data = ("\n".join(self._lines) + "\n").encode()
        self._lines.clear()
        with contextlib.suppress(OSError):  # whoever read the log is gone; serving goes on
            while data:
                data = data[os.write(self._descriptor, data) :]
