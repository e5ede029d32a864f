"""What a policy is asked, and what it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from keel.router.worker import Worker


class Ask(msgspec.Struct, frozen=True, gc=False):
    """What a policy may know of a request.

    Args:
        prompt: bytes that two requests share the beginning of where they share a prefix; only
            there for policies that say `reads_prompt`.
        key: the value of the header to hash by, or empty.
        tokens: of the prompt, estimated where nobody counted; at least 1.
    """

    prompt: bytes = b""
    key: bytes = b""
    tokens: int = 1


class Policy:
    """Chooses a worker. One instance serves one pool, so its state is about that pool alone."""

    name: ClassVar[str]
    reads_prompt: ClassVar[bool] = False

    def pick(self, workers: Sequence[Worker], ask: Ask) -> Worker:
        """One of `workers`, which are never none."""
        raise NotImplementedError

    def forget(self, worker: Worker) -> None:
        """A worker left for good."""
