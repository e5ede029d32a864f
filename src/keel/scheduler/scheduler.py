"""The scheduler: requests in, tokens out, a step at a time."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Protocol

import msgspec
import torch

from keel.cache.manager import CacheManager
from keel.cache.table import RequestTable
from keel.core import ForwardBatch, IntArray
from keel.layers.sampler import SamplingBatch
from keel.messages import Finish, Generate, Stats, Tokens
from keel.scheduler.batch import forward_batch, order_chunks, sampling_batch
from keel.scheduler.planner import Chunk, Limits, Planner
from keel.scheduler.request import Request


class Runner(Protocol):
    """What computes a batch (`models.runner.ModelRunner`)."""

    def __call__(self, batch: ForwardBatch, sampling: SamplingBatch) -> IntArray:
        """The sampled token of each entry of `batch.logit_index`."""


class Scheduler:
    """Plans a step, runs it, and tells each request what it got.

    It knows nothing of processes or sockets; `scheduler.process` and `keel.engine` drive it.
    """

    def __init__(
        self,
        runner: Runner,
        limits: Limits,
        cache: CacheManager,
        table: RequestTable,
        device: torch.device,
        eos_token_ids: tuple[int, ...] = (),
        random_seed: int | None = None,
    ) -> None:
        self._runner, self._limits, self._device = runner, limits, device
        self._cache, self._table = cache, table
        self._planner = Planner(limits, cache)
        self._eos = eos_token_ids
        self._random = random.Random(random_seed)
        self._requests: dict[str, Request] = {}
        self._arrivals = self._prompt_tokens = self._hit_tokens = 0
        self._generated = self._aborted = self._steps = 0

    @property
    def is_idle(self) -> bool:
        """Nothing runs or waits."""
        return self._planner.is_idle

    def submit(self, ask: Generate) -> Tokens | None:
        """Queue a request; the answer is a refusal, or None."""
        refusal = self._refuse(ask)
        if refusal:
            return Tokens(ask.rid, [], refusal)
        params = ask.params
        room = self._limits.max_request_tokens - len(ask.input_ids)
        new = room if params.max_new_tokens is None else min(params.max_new_tokens, room)
        seed = self._random.getrandbits(63) if params.seed is None else params.seed % 2**64
        eos = () if params.ignore_eos else self._eos
        request = Request(
            rid=ask.rid,
            ids=list(ask.input_ids),
            num_prompt=len(ask.input_ids),
            params=msgspec.structs.replace(params, max_new_tokens=new, seed=seed),
            stop_ids=frozenset(eos) | frozenset(params.stop_token_ids),
            arrival=self._arrivals,
            namespace=ask.namespace,
        )
        self._arrivals += 1
        self._prompt_tokens += request.num_prompt
        self._requests[ask.rid] = request
        self._planner.add(request)
        return None

    def _refuse(self, ask: Generate) -> Finish | None:
        most, queued = self._limits.max_request_tokens, self._limits.max_queued
        if not ask.input_ids:
            return Finish("error", message="the prompt has no tokens", status=400)
        if len(ask.input_ids) >= most:
            message = f"the prompt has {len(ask.input_ids)} tokens; a request holds {most}"
            return Finish("error", message=message, status=400)
        if ask.rid in self._requests:
            return Finish("error", message=f"request {ask.rid!r} is running already", status=400)
        room = self._limits.max_running - len(self._planner.running)
        if queued is not None and len(self._planner.waiting) - room >= queued:
            return Finish("error", message=f"{queued} requests are waiting already", status=503)
        return None

    def abort(self, prefix: str) -> list[Tokens]:
        """End the requests whose id begins with `prefix`; their slots are free at once."""
        named = [rid for rid in self._requests if rid.startswith(prefix)]
        return [tokens for rid in named for tokens in self.end(rid)]

    def end(self, rid: str) -> list[Tokens]:
        """End the one request of this id, as `abort` does; nothing where there is none."""
        request = self._requests.pop(rid, None)
        if request is None:
            return []
        self._planner.remove(request)
        self._aborted += 1
        return [Tokens(rid, [], Finish("abort"))]

    def step(self) -> list[Tokens]:
        """Compute once; empty when nothing can run, or only parts of prompts did."""
        chunks = order_chunks(self._planner.next_chunks())
        if not chunks:
            return []
        batch = forward_batch(chunks, self._table, self._device)
        sampled = iter(self._runner(batch, sampling_batch(chunks)).tolist())
        self._steps += 1
        return [
            tokens
            for chunk in chunks
            if (tokens := self._advance(chunk, sampled if chunk.reaches_end else None))
        ]

    def _advance(self, chunk: Chunk, sampled: Iterator[int] | None) -> Tokens | None:
        request = chunk.request
        was_decoding = request.is_decoding
        request.num_computed += chunk.count
        if not was_decoding:
            self._cache.share(request)
        if sampled is None:
            return None
        if request.num_generated == 0:
            self._hit_tokens += request.num_cached or 0
        token = next(sampled)
        request.append(token)
        self._generated += 1
        if request.finish:
            self._planner.remove(request)
            del self._requests[request.rid]
        return Tokens(request.rid, [token], request.finish, request.num_cached or 0)

    def flush(self) -> bool:
        """Empty the prefix cache; False, and nothing done, while requests are there."""
        if self.is_idle:
            self._cache.flush()
        return self.is_idle

    def stats(self) -> Stats:
        """The scheduler as it is now."""
        evictable = self._cache.num_evictable
        return Stats(
            running=len(self._planner.running),
            waiting=len(self._planner.waiting),
            used_tokens=self._cache.num_tokens - self._cache.num_available,
            cached_tokens=evictable,
            pool_tokens=self._cache.num_tokens,
            prompt_tokens_total=self._prompt_tokens,
            prefix_hit_tokens_total=self._hit_tokens,
            generated_tokens_total=self._generated,
            aborted_total=self._aborted,
            preempted_total=self._planner.num_preempted,
            steps_total=self._steps,
        )

    def check_integrity(self) -> None:
        """At idle, see that nothing was lost.

        Raises:
            AssertionError: naming what was.
        """
        assert self.is_idle, "not idle"
        assert not self._requests, "requests that nobody runs"
        self._cache.check_integrity()
