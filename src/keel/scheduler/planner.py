"""What runs in the next step: decodes, prompts and parts of prompts, within tokens and memory."""

from __future__ import annotations

from bisect import insort
from collections import deque
from dataclasses import dataclass
from itertools import islice

from keel.cache.manager import CacheManager
from keel.core import IntArray
from keel.scheduler.request import Request


@dataclass(frozen=True)
class Limits:
    """What the scheduler keeps to.

    Args:
        max_running: requests in one batch.
        prefill_tokens: prompt tokens in one step.
        chunked: a prompt may be computed in parts; otherwise a longer one goes alone.
        max_request_tokens: prompt and answer of one request; at most the pool.
        max_queued: requests that may wait; None is unlimited.
    """

    max_running: int
    prefill_tokens: int
    chunked: bool
    max_request_tokens: int
    max_queued: int | None = None


@dataclass(frozen=True)
class Chunk:
    """The next tokens of one request and the slots that they will have."""

    request: Request
    slots: IntArray

    @property
    def count(self) -> int:
        """How many tokens."""
        return len(self.slots)

    @property
    def reaches_end(self) -> bool:
        """A token is sampled after it."""
        return self.count == self.request.num_uncomputed


class Planner:
    """Holds waiting and running requests and decides who computes what.

    Running requests come first, in order of arrival, decodes and continued prompts alike; then
    waiting ones are admitted in order while tokens, rows and memory last. When memory is short the
    youngest running request gives up its slots and waits again (what it computed stays in the
    prefix cache until somebody needs the memory). So the oldest request always proceeds, and
    nothing starves.
    """

    # Answers grow while a prompt is computed: so many tokens are kept free for each of them.
    _GROWTH = 32
    # A waiting request lets the others pass that long a prefix is being computed next to it...
    _SHARED = 64
    # ...but no more than that many are looked at in vain.
    _PASSED_OVER = 16

    def __init__(self, limits: Limits, cache: CacheManager) -> None:
        self.limits = limits
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.num_preempted = 0
        self._cache = cache

    @property
    def is_idle(self) -> bool:
        """Nothing runs or waits; the same on every rank, since all see the same requests."""
        return not self.running and not self.waiting

    def add(self, request: Request) -> None:
        """Queue a request."""
        self.waiting.append(request)

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it is, and free what it holds."""
        if request.row >= 0:
            self.running.remove(request)
            self._cache.release(request)
        else:
            self.waiting.remove(request)

    def next_chunks(self) -> list[Chunk]:
        """The work of one step; slots are taken. Empty when nothing can run."""
        chunks: list[Chunk] = []
        budget = self._continue_running(chunks)
        self._admit_waiting(chunks, budget)
        return chunks

    def _continue_running(self, chunks: list[Chunk]) -> int:
        budget = self.limits.prefill_tokens
        for request in list(self.running):
            if request.row < 0:
                break  # preempted below, and all younger ones with it
            decoding = request.is_decoding
            count = 1 if decoding else min(request.num_uncomputed, budget)
            while count and self._cache.num_available < count and request.row >= 0:
                self._preempt(self.running[-1])
            if count and request.row >= 0:
                chunks.append(Chunk(request, self._cache.extend(request, count)))
                budget -= 0 if decoding else count
        return budget

    def _admit_waiting(self, chunks: list[Chunk], budget: int) -> None:
        passed = 0
        for request in list(islice(self.waiting, self.limits.max_running + self._PASSED_OVER)):
            if len(self.running) >= self.limits.max_running or passed > self._PASSED_OVER:
                return
            whole = len(request.ids)
            alone = not self.limits.chunked and not any(not c.request.is_decoding for c in chunks)
            if budget < 1 or (not self.limits.chunked and whole > budget and not alone):
                return
            if self._better_later(request, chunks):
                passed += 1
                continue
            self._cache.admit(request)
            if self._cache.num_available < request.num_uncomputed + self._reserve():
                self._cache.release(request)
                return
            self.waiting.remove(request)
            insort(self.running, request, key=lambda one: one.arrival)
            if request.num_cached is None:
                request.num_cached = request.num_computed
            count = request.num_uncomputed
            if self.limits.chunked:
                count = min(count, budget)
            chunks.append(Chunk(request, self._cache.extend(request, count)))
            budget -= count

    def _reserve(self) -> int:
        """Tokens that running requests will want soon."""
        total = 0
        for request in self.running:
            left = (request.params.max_new_tokens or 0) - request.num_generated
            total += request.num_uncomputed - 1 + min(left, self._GROWTH)
        return total

    def _better_later(self, request: Request, chunks: list[Chunk]) -> bool:
        """Whether a prompt in this step computes what this one would compute again."""
        for chunk in chunks:
            other = chunk.request
            if other.is_decoding or other.namespace != request.namespace or other.skip_cache_insert:
                continue
            if request.ids[: self._SHARED] != other.ids[: self._SHARED]:
                continue
            known = self._cache.count_known(request)
            stop = known + self._SHARED
            if len(request.ids) > stop and request.ids[:stop] == other.ids[:stop]:
                return True
        return False

    def _preempt(self, request: Request) -> None:
        self.running.remove(request)
        self._cache.release(request)
        self.waiting.appendleft(request)
        self.num_preempted += 1
