"""Oracles of the small fused operations."""

from __future__ import annotations

import torch


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(x + residual) over its root mean square, times `weight`; and x + residual in x's dtype.

    The sum is rounded to x's dtype first, as the next layer's residual will be.

    Args:
        x, residual: [n, d]. weight: [d].

    Returns:
        ([n, d] float64, [n, d] of x's dtype).
    """
    total = x if residual is None else (x.double() + residual.double()).to(x.dtype)
    wide = total.double()
    return wide * (wide.pow(2).mean(-1, keepdim=True) + eps).rsqrt() * weight.double(), total


def silu_mul(x: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up for x [n, 2 d] = gate, up.

    Returns:
        [n, d] float64.
    """
    gate, up = x.double().chunk(2, -1)
    return torch.nn.functional.silu(gate) * up


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate the first columns of each head, the two halves of them paired (the NeoX order).

    Args:
        x: [n, heads, d]. cos, sin: [n, r / 2], r <= d columns are rotated.

    Returns:
        [n, heads, d] float64.
    """
    half = cos.shape[1]
    wide = x.double()
    first, second, rest = wide[..., :half], wide[..., half : 2 * half], wide[..., 2 * half :]
    c, s = cos.double()[:, None], sin.double()[:, None]
    return torch.cat([first * c - second * s, second * c + first * s, rest], -1)


def store_kv(
    k: torch.Tensor,
    v: torch.Tensor,
    slots: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> None:
    """Write tokens' keys and values into their slots, divided by the scales; -1 writes nothing."""
    for i, slot in enumerate(slots.tolist()):
        if slot >= 0:
            k_cache[slot] = (k[i].float() / k_scale).to(k_cache.dtype)
            v_cache[slot] = (v[i].float() / v_scale).to(v_cache.dtype)
