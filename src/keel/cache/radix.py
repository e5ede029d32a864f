"""Prefixes whose keys and values are still in the pool: a radix tree over token ids."""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field

import numpy as np

from keel.core import IntArray

_NONE = np.empty(0, dtype=np.int64)


@dataclass(eq=False)
class Node:
    """An edge of the tree with what lies at its end.

    Args:
        key: token ids on the way from the parent; empty at a root only. A root without children
            is not kept.
        slots: where their keys and values are; as long as `key`.
        locks: requests that use this node or one below; a locked node is not evicted.
        used: a clock of the last match or insert.
    """

    key: IntArray
    slots: IntArray
    parent: Node | None
    namespace: str
    children: dict[int, Node] = field(default_factory=dict)
    locks: int = 0
    used: int = 0


@dataclass(frozen=True)
class Match:
    """The longest known prefix of some tokens.

    Args:
        slots: of the prefix; as long as it is.
        node: where it ends; lock it for as long as the slots are used.
    """

    slots: IntArray
    node: Node


class RadixCache:
    """A tree per namespace, sharing one least-recently-used order.

    What evicts: only `evict`, only leaves that no request has locked, oldest first. Slots in the
    tree belong to the tree; whoever inserts gives them away.
    """

    def __init__(self) -> None:
        self._clock = itertools.count(1)
        self.reset()

    def reset(self) -> None:
        """Forget everything; the caller frees all slots."""
        self._roots: dict[str, Node] = {}
        self._evictable = 0
        self._protected = 0

    @property
    def evictable_size(self) -> int:
        """Tokens that `evict` could free."""
        return self._evictable

    @property
    def protected_size(self) -> int:
        """Tokens that running requests use."""
        return self._protected

    def match(self, ids: IntArray, namespace: str = "") -> Match:
        """The longest prefix of `ids` in the tree; splits an edge where the prefix ends inside."""
        node = self._roots.get(namespace) or Node(_NONE, _NONE, None, namespace)
        found = [_NONE]
        done, now = 0, next(self._clock)
        while done < len(ids) and (child := node.children.get(int(ids[done]))) is not None:
            common = _common(child.key, ids[done:])
            if common < len(child.key):
                child = self._split(child, common)
            child.used = now
            found.append(child.slots)
            done += common
            node = child
        return Match(np.concatenate(found), node)

    def insert(self, ids: IntArray, slots: IntArray, namespace: str = "") -> int:
        """Give the tree the slots of `ids`.

        Returns:
            How many leading tokens the tree had already: it keeps its own slots for those, and
            the given ones stay the caller's.
        """
        known = self.match(ids, namespace)
        done = len(known.slots)
        if done < len(ids):
            if known.node.parent is None:
                self._roots[namespace] = known.node
            leaf = Node(
                key=np.array(ids[done:]),
                slots=np.array(slots[done:]),
                parent=known.node,
                namespace=namespace,
                used=next(self._clock),
            )
            known.node.children[int(ids[done])] = leaf
            self._evictable += len(leaf.key)
        return done

    def lock(self, node: Node) -> None:
        """Keep the path to `node` until it is unlocked as often."""
        step: Node | None = node
        while step is not None and step.parent is not None:
            if step.locks == 0:
                self._evictable -= len(step.key)
                self._protected += len(step.key)
            step.locks += 1
            step = step.parent

    def unlock(self, node: Node) -> None:
        """Undo one `lock`."""
        step: Node | None = node
        while step is not None and step.parent is not None:
            step.locks -= 1
            if step.locks == 0:
                self._evictable += len(step.key)
                self._protected -= len(step.key)
            step = step.parent

    def evict(self, count: int) -> IntArray:
        """Forget the least recently used leaves until `count` tokens are free, or none is left.

        Returns:
            The slots that the tree gave up; the caller frees them.
        """
        heap = [(node.used, id(node), node) for node in self._leaves() if node.locks == 0]
        heapq.heapify(heap)
        freed = [_NONE]
        done = 0
        while heap and done < count:
            node = heapq.heappop(heap)[2]
            parent = node.parent
            assert parent is not None
            # The tail of a long leaf is enough when less is asked.
            keep = max(0, len(node.key) - (count - done))
            freed.append(node.slots[keep:])
            done += len(node.key) - keep
            self._evictable -= len(node.key) - keep
            if keep:
                node.key, node.slots = node.key[:keep], node.slots[:keep]
                break
            del parent.children[int(node.key[0])]
            if parent.parent is None and not parent.children:
                self._roots.pop(parent.namespace, None)
            if not parent.children and parent.parent is not None and parent.locks == 0:
                heapq.heappush(heap, (parent.used, id(parent), parent))
        return np.concatenate(freed)

    def all_slots(self) -> IntArray:
        """Every slot that the tree owns."""
        return np.concatenate([_NONE, *(node.slots for node in self._nodes())])

    def check_integrity(self) -> None:
        """Check what must always hold.

        Raises:
            AssertionError: naming what does not.
        """
        locked = unlocked = 0
        for node in self._nodes():
            assert len(node.key) == len(node.slots) > 0, "an edge without tokens, or without slots"
            assert node.parent is not None
            assert node.parent.children[int(node.key[0])] is node, "a child under another's token"
            assert node.parent.parent is None or node.parent.locks >= node.locks, "a loose lock"
            if node.locks:
                locked += len(node.key)
            else:
                unlocked += len(node.key)
        assert (unlocked, locked) == (self._evictable, self._protected), (
            f"sizes are off: {self._evictable} evictable, {self._protected} protected; "
            f"counted {unlocked} and {locked}"
        )

    def _split(self, node: Node, length: int) -> Node:
        """Cut an edge after `length` tokens; the new upper node is returned, with equal locks."""
        parent = node.parent
        assert parent is not None
        upper = Node(
            key=node.key[:length],
            slots=node.slots[:length],
            parent=parent,
            namespace=node.namespace,
            children={int(node.key[length]): node},
            locks=node.locks,
            used=node.used,
        )
        parent.children[int(node.key[0])] = upper
        node.key, node.slots, node.parent = node.key[length:], node.slots[length:], upper
        return upper

    def _nodes(self) -> list[Node]:
        found: list[Node] = []
        left = [child for root in self._roots.values() for child in root.children.values()]
        while left:
            node = left.pop()
            found.append(node)
            left.extend(node.children.values())
        return found

    def _leaves(self) -> list[Node]:
        return [node for node in self._nodes() if not node.children]


def _common(left: IntArray, right: IntArray) -> int:
    """Length of the common beginning."""
    size = min(len(left), len(right))
    differ = np.flatnonzero(left[:size] != right[:size])
    return int(differ[0]) if len(differ) else size
