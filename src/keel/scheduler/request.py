"""A request while the scheduler knows it."""

from __future__ import annotations

from dataclasses import dataclass, field

from keel.cache.radix import Node
from keel.messages import Finish, SamplingParams


@dataclass(eq=False)
class Request:
    """A prompt, its answer so far, and what it holds.

    A request is one list of tokens of which the first `num_computed` have keys and values in the
    pool. Prefilling, a chunk of a prompt, decoding and recomputing after preemption are all the
    same: compute more of the list; at its end, sample.

    Args:
        ids: prompt and answer.
        num_prompt: how many of `ids` are the prompt.
        params: with `seed` and `max_new_tokens` decided.
        stop_ids: tokens that end the answer.
        arrival: order of arrival; the smallest runs first and is preempted last.
        row: in the request table, -1 while waiting.
        num_computed: tokens with keys and values in the pool.
        num_shared: leading tokens whose slots belong to the prefix cache.
        node: the locked end of the shared prefix.
        num_cached: prompt tokens that the prefix cache had when the request first ran.
    """

    rid: str
    ids: list[int]
    num_prompt: int
    params: SamplingParams
    stop_ids: frozenset[int]
    arrival: int
    namespace: str = ""
    skip_cache_insert: bool = False
    row: int = -1
    num_computed: int = 0
    num_shared: int = 0
    node: Node | None = None
    num_cached: int | None = None
    finish: Finish | None = field(default=None)

    @property
    def num_uncomputed(self) -> int:
        """Tokens to compute before the next one can be sampled; 1 while decoding."""
        return len(self.ids) - self.num_computed

    @property
    def num_generated(self) -> int:
        """Tokens of the answer so far."""
        return len(self.ids) - self.num_prompt

    @property
    def is_decoding(self) -> bool:
        """One new token on top of a computed prefix."""
        return self.num_computed > 0 and self.num_uncomputed == 1

    def append(self, token: int) -> None:
        """Take a sampled token, and see whether it ends the answer."""
        self.ids.append(token)
        if token in self.stop_ids and self.num_generated > self.params.min_new_tokens:
            self.finish = Finish("stop", matched=token)
        elif self.num_generated >= (self.params.max_new_tokens or 0):
            self.finish = Finish("length")
