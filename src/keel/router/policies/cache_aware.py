"""Sends a prompt to the worker that has seen most of it, unless the load is out of balance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from keel.router.policies.base import Ask, Policy
from keel.router.policies.prefixes import PrefixTree, chain
from keel.router.policies.simple import LeastLoad
from keel.router.worker import Worker


class CacheAware(Policy):
    """Approximates each worker's prefix cache by the prompts that were sent to it.

    Args:
        threshold: the least share of the prompt, 0 to 1, that decides; below it the worker with
            the smallest tree is chosen.
        absolute, relative: loads are out of balance if the largest is more than `absolute` above
            the smallest, and more than `relative` times it; then the least loaded is chosen.
        tree_bytes: of prompts remembered per worker.
    """

    name: ClassVar[str] = "cache_aware"
    reads_prompt: ClassVar[bool] = True

    def __init__(self, threshold: float, absolute: int, relative: float, tree_bytes: int) -> None:
        self._threshold, self._absolute, self._relative = threshold, absolute, relative
        self._tree_bytes = tree_bytes
        self._trees: dict[str, PrefixTree] = {}
        self._least = LeastLoad()

    def pick(self, workers: Sequence[Worker], ask: Ask) -> Worker:
        blocks = chain(ask.prompt)
        chosen = self._choose(workers, ask, blocks)
        self._tree(chosen).insert(blocks)
        return chosen

    def forget(self, worker: Worker) -> None:
        self._trees.pop(worker.url, None)

    def _choose(self, workers: Sequence[Worker], ask: Ask, blocks: list[tuple[int, int]]) -> Worker:
        loads = [worker.load for worker in workers]
        low, high = min(loads), max(loads)
        if high - low > self._absolute and high > low * self._relative:
            return self._least.pick(workers, ask)
        best, seen = workers[0], -1
        for worker in workers:
            matched = self._tree(worker).match(blocks)
            if matched > seen:
                best, seen = worker, matched
        if seen > self._threshold * len(ask.prompt):
            return best
        # Nobody knows it: whoever has the most room, among equals whoever has least to do.
        smallest = min(self._tree(worker).size for worker in workers)
        roomy = [worker for worker in workers if self._tree(worker).size == smallest]
        return self._least.pick(roomy, ask)

    def _tree(self, worker: Worker) -> PrefixTree:
        tree = self._trees.get(worker.url)
        if tree is None:
            tree = self._trees[worker.url] = PrefixTree(self._tree_bytes)
        return tree
