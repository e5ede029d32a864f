"""An approximate prefix tree: which beginnings of prompts a worker has seen."""

from __future__ import annotations

from collections import OrderedDict

# A prompt is cut at the same places whatever it says, finely at its beginning and ever more
# coarsely: 64 blocks of 64 bytes, then 64 of 128, and so on. A megabyte has under 700 cuts, and a
# match is wrong by at most a 64th of its length.
_FIRST_BLOCK = 64
_BLOCKS_PER_SIZE = 64


def chain(prompt: bytes) -> list[tuple[int, int]]:
    """The nodes of a prompt from the root on, each as (hash of everything so far, bytes of it).

    A piece at the end that fills no block has none.
    """
    found = []
    node, at, size, left = 0, 0, _FIRST_BLOCK, _BLOCKS_PER_SIZE
    end = len(prompt)
    while at + size <= end:
        node = hash((node, prompt[at : at + size]))
        found.append((node, size))
        at += size
        left -= 1
        if not left:
            size, left = size * 2, _BLOCKS_PER_SIZE
    return found


class PrefixTree:
    """Nodes in the order of their last use, a parent never before its children.

    So what is dropped first is the end of the prompt that was not seen for longest, and whoever is
    there has its parents there too.

    Args:
        capacity: bytes of prompts.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._nodes: OrderedDict[int, int] = OrderedDict()
        self.size = 0

    def match(self, blocks: list[tuple[int, int]]) -> int:
        """How many bytes from the prompt's beginning have been seen."""
        nodes, low, high = self._nodes, 0, len(blocks)
        while low < high:  # the first `low` are there, those from `high` on are not
            middle = (low + high + 1) // 2
            if blocks[middle - 1][0] in nodes:
                low = middle
            else:
                high = middle - 1
        return sum(size for _, size in blocks[:low])

    def insert(self, blocks: list[tuple[int, int]]) -> None:
        """Remember a prompt."""
        nodes = self._nodes
        for node, size in reversed(blocks):
            if node not in nodes:
                nodes[node] = size
                self.size += size
            else:
                nodes.move_to_end(node)
        while self.size > self._capacity:
            _, size = nodes.popitem(last=False)
            self.size -= size

    def check_integrity(self) -> None:
        """Raise AssertionError if the size is not the sum of its parts, or above the capacity."""
        assert self.size == sum(self._nodes.values())
        assert self.size <= self._capacity
