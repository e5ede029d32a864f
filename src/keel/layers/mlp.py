"""What follows attention in a layer: a gated MLP, or a mixture of such experts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from keel.layers.linear import Linear


class GatedMLP:
    """`down(silu(gate(x)) * up(x))`.

    Args:
        gate_up: [T, hidden] to [T, 2 * inner], gate first.
        down: [T, inner] to [T, hidden].
    """

    def __init__(self, gate_up: Linear, down: Linear) -> None:
        self._gate_up, self._down = gate_up, down

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, hidden] to [T, hidden]."""
        gate, up = self._gate_up(x).chunk(2, -1)
        return self._down(F.silu(gate).mul_(up))


class ExpertMLP:
    """Each token through the experts that its router rates highest (Shazeer et al. 2017).

    Only experts that a token chose are computed, each once for all its tokens.

    Args:
        router: [T, hidden] to [T, experts].
        experts: one module an expert.
        per_token: how many each token takes.
        normalise: their weights are made to sum to 1.
    """

    def __init__(
        self, router: Linear, experts: Sequence[GatedMLP], per_token: int, normalise: bool
    ) -> None:
        self._router, self._experts = router, experts
        self._per_token, self._normalise = per_token, normalise

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, hidden] to [T, hidden]."""
        weights, chosen = self._router(x).softmax(-1, dtype=torch.float32).topk(self._per_token)
        if self._normalise:
            weights = weights / weights.sum(-1, keepdim=True)
        weights = weights.to(x.dtype).flatten()
        # The (token, expert) pairs in order of experts: each expert's tokens are one slice.
        order = chosen.flatten().argsort(stable=True)
        tokens = order // self._per_token
        counts = chosen.flatten().bincount(minlength=len(self._experts)).tolist()
        out = torch.zeros_like(x)
        start = 0
        for expert, count in zip(self._experts, counts, strict=True):
            if count:
                mine = slice(start, start + count)
                answer = expert(x[tokens[mine]]) * weights[order[mine], None]
                out.index_add_(0, tokens[mine], answer)
                start += count
        return out
