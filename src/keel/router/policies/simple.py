"""Policies that need no memory of prompts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from hashlib import blake2b
from typing import ClassVar

from keel.router.policies.base import Ask, Policy
from keel.router.worker import Worker


class RoundRobin(Policy):
    """Each in turn."""

    name: ClassVar[str] = "round_robin"

    def __init__(self) -> None:
        self._turn = -1

    def pick(self, workers: Sequence[Worker], ask: Ask) -> Worker:
        self._turn += 1
        return workers[self._turn % len(workers)]


class Random(Policy):
    """Any, each as likely."""

    name: ClassVar[str] = "random"

    def pick(self, workers: Sequence[Worker], ask: Ask) -> Worker:
        return workers[int(random.random() * len(workers))]


class PowerOfTwo(Policy):
    """The less loaded of two random ones: nearly as even as the least, and no herd runs to it."""

    name: ClassVar[str] = "power_of_two"

    def pick(self, workers: Sequence[Worker], ask: Ask) -> Worker:
        if len(workers) == 1:
            return workers[0]
        one, other = random.sample(workers, 2)
        return one if _weight(one) <= _weight(other) else other


class LeastLoad(Policy):
    """The one with the fewest requests, then prompt tokens, in hand; among equals each in turn."""

    name: ClassVar[str] = "least_load"

    def __init__(self) -> None:
        self._turn = -1

    def pick(self, workers: Sequence[Worker], ask: Ask) -> Worker:
        self._turn += 1
        start = self._turn % len(workers)
        return min((*workers[start:], *workers[:start]), key=_weight)


class ConsistentHashing(Policy):
    """The same worker for the same header; where one joins or leaves, only its share moves.

    Rendezvous hashing (Thaler and Ravishankar, 1998): the worker whose hash with the key is the
    highest. Processes agree on it without talking. Requests without the header go in turn.
    """

    name: ClassVar[str] = "consistent_hashing"

    def __init__(self) -> None:
        self._without_key = RoundRobin()

    def pick(self, workers: Sequence[Worker], ask: Ask) -> Worker:
        if not ask.key:
            return self._without_key.pick(workers, ask)
        return max(workers, key=lambda worker: _score(worker.url, ask.key))


def _score(url: str, key: bytes) -> bytes:
    return blake2b(key, digest_size=8, key=blake2b(url.encode(), digest_size=32).digest()).digest()


def _weight(worker: Worker) -> tuple[int, int]:
    return worker.load, worker.token_load
