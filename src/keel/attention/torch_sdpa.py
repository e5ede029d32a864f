"""Attention by torch's scaled_dot_product_attention: any device, no compiler."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from keel.cache.pool import KVPool
from keel.core import ForwardBatch


@dataclass(frozen=True)
class _Extend:
    """One request with several new tokens: where it is in the batch, its slots, its mask."""

    start: int
    stop: int
    slots: slice | torch.Tensor
    mask: torch.Tensor | None  # None: plain causal, no computed prefix


@dataclass(frozen=True)
class _Plan:
    decode_slots: (
        slice | torch.Tensor | None
    )  # [D * longest]; a slice where one request lies in a run
    decode_longest: int
    decode_mask: torch.Tensor | None  # [D, 1, 1, longest], None where nothing is padded
    extends: tuple[_Extend, ...]


class TorchAttention:
    """An `AttentionBackend`.

    Decodes of a batch are one call: their tokens are gathered to the longest and masked, and the
    query heads that share a key head stand as rows of one query, so that keys are not repeated.
    A prompt is a call of its own, over a view of the pool where its slots lie in a run.

    Args:
        windows: of each layer, how many tokens a token sees (`ModelConfig.windows`).
    """

    def __init__(self, pool: KVPool, num_heads: int, windows: tuple[int | None, ...] = ()) -> None:
        self._windows = windows or (None,) * pool.layout.num_layers
        self._pool = pool
        self._kv_heads = pool.layout.num_kv_heads
        self._head_dim = pool.layout.head_dim
        self._group = num_heads // self._kv_heads

    def plan(self, batch: ForwardBatch) -> dict[int | None, _Plan]:
        """One for each window that layers have."""
        return {window: self._plan(batch, window) for window in dict.fromkeys(self._windows)}

    def _plan(self, batch: ForwardBatch, window: int | None) -> _Plan:
        count, device = batch.num_decodes, batch.table.device
        slots: slice | torch.Tensor | None = None
        mask = None
        longest = 0
        if count:
            lens = batch.seq_lens[:count]
            seen = lens if window is None else np.minimum(lens, window)
            longest = int(seen.max())
            if count == 1:
                stop = int(lens[0])
                slots = _run_or_index(batch.table[int(batch.rows[0]), stop - longest : stop])
            else:
                rows = torch.from_numpy(batch.rows[:count]).to(device)
                steps = np.arange(longest)
                positions = torch.from_numpy((lens - seen)[:, None] + steps).to(device)
                valid = torch.from_numpy(steps < seen[:, None]).to(device)
                slots = (batch.table[rows[:, None], positions * valid] * valid).flatten()
                if int(seen.min()) < longest:
                    dtype = self._pool.layout.dtype
                    mask = torch.zeros(valid.shape, dtype=dtype, device=device)
                    mask.masked_fill_(~valid, -torch.inf)
                    mask = mask[:, None, None, :]
        ends = np.cumsum(batch.query_lens)
        extends = tuple(
            self._extend(batch, index, int(ends[index]), window)
            for index in range(count, len(ends))
        )
        return _Plan(slots, longest, mask, extends)

    def _extend(self, batch: ForwardBatch, index: int, stop: int, window: int | None) -> _Extend:
        new, total = int(batch.query_lens[index]), int(batch.seq_lens[index])
        first = 0 if window is None else max(0, total - new - window + 1)
        slots = _run_or_index(batch.table[int(batch.rows[index]), first:total])
        mask = None
        if new < total or (window is not None and window < total):
            shape, device = (new, total - first), batch.table.device
            mask = torch.full(shape, -torch.inf, dtype=self._pool.layout.dtype, device=device)
            prefix = total - new - first
            mask = mask.triu(prefix + 1)  # query i sees keys up to prefix + i
            if window is not None:
                older = torch.ones(shape, dtype=torch.bool, device=device).tril(prefix - window)
                mask.masked_fill_(older, -torch.inf)
        return _Extend(stop - new, stop, slots, mask)

    def forward(
        self,
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        batch: ForwardBatch,
    ) -> torch.Tensor:
        self._pool.write(layer, batch.out_slots, k, v)
        keys, values = self._pool.keys[layer], self._pool.values[layer]
        plan: _Plan = batch.plan[self._windows[layer]]
        if batch.num_decodes == len(q):
            return self._decode(q, keys, values, plan)
        out = q.new_empty(len(q), q.shape[1] * self._head_dim)
        if batch.num_decodes:
            out[: batch.num_decodes] = self._decode(q[: batch.num_decodes], keys, values, plan)
        for part in plan.extends:
            out[part.start : part.stop] = self._prefill(q, keys, values, part)
        return out

    def _decode(
        self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, plan: _Plan
    ) -> torch.Tensor:
        count, kv, group, dim = len(q), self._kv_heads, self._group, self._head_dim
        shape = (count, plan.decode_longest, kv, dim)
        assert plan.decode_slots is not None
        out = F.scaled_dot_product_attention(
            q.view(count, kv, group, dim),
            _read(keys, plan.decode_slots).view(shape).transpose(1, 2),
            _read(values, plan.decode_slots).view(shape).transpose(1, 2),
            attn_mask=plan.decode_mask,
        )
        return out.reshape(count, kv * group * dim)

    def _prefill(
        self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, part: _Extend
    ) -> torch.Tensor:
        new, kv, group, dim = part.stop - part.start, self._kv_heads, self._group, self._head_dim

        # Key heads as the batch, and each shared by its group through a stride of 0: no copy.
        def heads(buffer: torch.Tensor) -> torch.Tensor:
            shared = _read(buffer, part.slots).transpose(0, 1)[:, None]
            return shared.expand(kv, group, shared.shape[2], dim)

        out = F.scaled_dot_product_attention(
            q[part.start : part.stop].view(new, kv, group, dim).permute(1, 2, 0, 3),
            heads(keys),
            heads(values),
            attn_mask=part.mask,
            is_causal=part.mask is None,
        )
        return out.permute(2, 0, 1, 3).reshape(new, kv * group * dim)


def _run_or_index(slots: torch.Tensor) -> slice | torch.Tensor:
    """A slice where the slots are consecutive (known without waiting only on the CPU)."""
    if slots.device.type == "cpu":
        row = slots.numpy()
        first, last = int(row[0]), int(row[-1])
        if last - first == len(row) - 1 and bool(np.all(np.diff(row) == 1)):
            return slice(first, last + 1)
    return slots


def _read(buffer: torch.Tensor, slots: slice | torch.Tensor) -> torch.Tensor:
    return buffer[slots] if isinstance(slots, slice) else buffer.index_select(0, slots)
