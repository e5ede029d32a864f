"""What models ask of an attention backend."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from keel.core import ForwardBatch


class AttentionBackend(Protocol):
    """Causal attention of new tokens over their request's tokens in the KV pool.

    A backend owns how keys and values are written and read; models never touch the pool.
    """

    def plan(self, batch: ForwardBatch) -> Any:
        """What all layers share for this batch (indices, masks); called once a forward pass."""

    def forward(
        self,
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        batch: ForwardBatch,
    ) -> torch.Tensor:
        """Store `k` and `v` in the pool, then attend.

        Args:
            q: [T, num_heads, head_dim].
            k, v: [T, num_kv_heads, head_dim].
            batch: with `plan` set.

        Returns:
            [T, num_heads * head_dim], contiguous.
        """
