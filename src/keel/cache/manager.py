"""Who owns which slot: the allocator, the request table and the prefix cache as one."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from keel.cache.allocator import SlotAllocator
from keel.cache.radix import Node, RadixCache
from keel.cache.table import RequestTable
from keel.core import IntArray


class Holder(Protocol):
    """What the cache knows of a request (see `scheduler.request.Request`)."""

    ids: list[int]
    namespace: str
    skip_cache_insert: bool
    row: int
    num_computed: int
    num_shared: int
    node: Node | None


class CacheManager:
    """Gives requests slots and takes them back.

    Invariant: every slot is free, or in the prefix cache, or belongs to one running request, at
    its positions from `num_shared` on.
    """

    # Evicting costs a walk over the tree, so it is done for some tokens ahead.
    _EVICT_AT_LEAST = 256

    def __init__(self, num_tokens: int, table: RequestTable, prefixes: RadixCache | None) -> None:
        self.num_tokens = num_tokens
        self._table = table
        self._slots = SlotAllocator(num_tokens)
        self._prefixes = prefixes

    @property
    def num_available(self) -> int:
        """Slots that `extend` can give, by eviction if need be."""
        cached = self._prefixes.evictable_size if self._prefixes else 0
        return self._slots.num_free + cached

    @property
    def num_evictable(self) -> int:
        """Tokens kept only because a later request might want them."""
        return self._prefixes.evictable_size if self._prefixes else 0

    def count_known(self, request: Holder) -> int:
        """Leading tokens that would come from the prefix cache, were the request admitted now."""
        return len(self._match(request)[0])

    def admit(self, request: Holder) -> None:
        """Give a request a row and what the prefix cache has of it.

        The last token is never taken from the cache: computing it gives the logits to sample from.
        """
        slots, node = self._match(request)
        request.row = self._table.take()
        request.num_computed = request.num_shared = len(slots)
        request.node = node
        if self._prefixes and node:
            self._prefixes.lock(node)
        self._table.write(request.row, 0, slots)

    def extend(self, request: Holder, count: int) -> IntArray:
        """Slots for the next `count` tokens; at most `num_available`."""
        missing = count - self._slots.num_free
        if missing > 0 and self._prefixes:
            self._slots.free(self._prefixes.evict(max(missing, self._EVICT_AT_LEAST)))
        start = request.num_computed
        last = int(self._table.read(request.row, start - 1, start)[0]) if start else 0
        slots = self._slots.allocate(count, after=last)
        self._table.write(request.row, start, slots)
        return slots

    def share(self, request: Holder) -> None:
        """Let other requests use what a running request has computed so far."""
        if self._prefixes is None or request.skip_cache_insert:
            return
        self._insert(request)
        slots, node = self._match(request, request.num_computed)
        assert node is not None
        assert len(slots) == request.num_computed
        self._table.write(request.row, 0, slots)
        self._prefixes.lock(node)
        if request.node:
            self._prefixes.unlock(request.node)
        request.node, request.num_shared = node, len(slots)

    def release(self, request: Holder) -> None:
        """Take everything back; what was computed stays in the prefix cache for later."""
        if self._prefixes is None or request.skip_cache_insert:
            self._slots.free(
                self._table.read(request.row, request.num_shared, request.num_computed)
            )
        else:
            self._insert(request)
        if self._prefixes and request.node:
            self._prefixes.unlock(request.node)
        self._table.give_back(request.row)
        request.row, request.node = -1, None
        request.num_computed = request.num_shared = 0

    def flush(self) -> None:
        """Forget all prefixes. Only while no request is running."""
        if self._prefixes:
            self._slots.free(self._prefixes.all_slots())
            self._prefixes.reset()

    def check_integrity(self) -> None:
        """At idle every row is free and every slot is free or in the prefix cache.

        Raises:
            AssertionError: something is lost, or owned twice.
        """
        self._table.check_integrity()
        owned = [self._slots.free_slots()]
        if self._prefixes:
            self._prefixes.check_integrity()
            assert self._prefixes.protected_size == 0, "a prefix is locked by nobody"
            owned.append(self._prefixes.all_slots())
        slots = np.sort(np.concatenate(owned))
        assert np.array_equal(slots, np.arange(1, self.num_tokens + 1)), "slots lost or owned twice"

    def _match(self, request: Holder, length: int | None = None) -> tuple[IntArray, Node | None]:
        if self._prefixes is None:
            return np.empty(0, dtype=np.int64), None
        limit = len(request.ids) - 1 if length is None else length
        found = self._prefixes.match(np.array(request.ids[:limit]), request.namespace)
        return found.slots, found.node

    def _insert(self, request: Holder) -> None:
        """Give the computed tokens to the tree, and free our copies of what it had already."""
        assert self._prefixes is not None
        count = request.num_computed
        slots = self._table.read(request.row, 0, count)
        known = self._prefixes.insert(np.array(request.ids[:count]), slots, request.namespace)
        self._slots.free(slots[request.num_shared : known])
