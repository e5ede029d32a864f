"""The owner of the worker list: in a single router beside the table, else in the supervisor."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

import msgspec

from keel.router.load import SLOTS, LoadBoard
from keel.router.worker import Membership, WorkerSpec, WorkerTable

log = logging.getLogger("keel.router")


class Added(msgspec.Struct, frozen=True, tag="added"):
    """A worker joins, or what is said of it changes."""

    spec: WorkerSpec
    slot: int


class Drained(msgspec.Struct, frozen=True, tag="drained"):
    """A worker gets no more requests."""

    url: str


class Removed(msgspec.Struct, frozen=True, tag="removed"):
    """A worker left."""

    url: str


Change = Added | Drained | Removed


def apply_change(table: WorkerTable, change: Change) -> None:
    """Do to a process's table what was decided for all."""
    match change:
        case Added(spec, slot):
            table.add(spec, slot)
        case Drained(url):
            table.drain(url)
        case Removed(url):
            table.remove(url)


class Fleet:
    """Decides who is a worker, and tells the router processes.

    Args:
        tell: hands a change to every process.
        drain_timeout: seconds that a leaving worker may finish its requests.
    """

    def __init__(
        self, board: LoadBoard, tell: Callable[[Change], None], drain_timeout: float
    ) -> None:
        self._board, self._tell, self._drain_timeout = board, tell, drain_timeout
        self._members = Membership(SLOTS)
        self._source: dict[str, str] = {}

    def history(self) -> list[Change]:
        """The changes that bring an empty table up to date."""
        members = self._members
        found: list[Change] = [Added(spec, members.slots[u]) for u, spec in members.specs.items()]
        return found + [Drained(url) for url in members.draining]

    def specs(self) -> list[WorkerSpec]:
        """All workers."""
        return list(self._members.specs.values())

    def add(self, spec: WorkerSpec, source: str = "admin") -> None:
        """A worker joins; one that was about to leave stays.

        Raises:
            ValueError: there are too many.
        """
        slot = self._members.add(spec)
        self._source[spec.url] = source
        self._tell(Added(spec, slot))

    def drain(self, url: str) -> bool:
        """A worker gets no more requests, and leaves when it has none; False: there is no such."""
        if url not in self._members.specs:
            return False
        self._members.drain(url)
        self._tell(Drained(url))
        return True

    def remove(self, url: str) -> bool:
        """A worker leaves now; False: there is no such."""
        if url not in self._members.specs:
            return False
        self._members.remove(url)
        self._source.pop(url, None)
        self._tell(Removed(url))
        return True

    def tick(self) -> None:
        """Let go of the workers that have drained, or had their time."""
        now = time.monotonic()
        for url, since in list(self._members.draining.items()):
            left = self._board.requests(self._members.slots[url])
            if left <= 0 or now - since > self._drain_timeout:
                if left > 0:
                    log.warning("worker %s leaves with %d requests in hand", url, left)
                self.remove(url)

    def reconcile(self, source: str, specs: Sequence[WorkerSpec]) -> None:
        """Make the workers that came from `source` those of `specs`.

        Workers from elsewhere are left alone.
        """
        wanted = {spec.url: spec for spec in specs}
        for url, spec in wanted.items():
            known = self._members.specs.get(url)
            if known is not None and self._source.get(url) != source:
                continue
            if known != spec or url in self._members.draining:
                log.info("%s: worker %s joins", source, url)
                self.add(spec, source)
        for url, owner in list(self._source.items()):
            if owner == source and url not in wanted and url not in self._members.draining:
                log.info("%s: worker %s leaves", source, url)
                self.drain(url)
