"""Rotary position embedding as a complex product.

Keel keeps the two halves of each head alternately (`i`, `i + head_dim / 2`, ...), so that rotating
all heads is one complex product. Rows of q and k are brought into that order when weights are
loaded; scores do not change, since q and k are permuted alike.
"""

from __future__ import annotations

import math

import torch

from keel.models.config import Rope


def alternate_rows(rows: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Reorder rows [heads * head_dim, ...] from Hugging Face's halves to alternating pairs."""
    halves = rows.reshape(-1, 2, head_dim // 2, *rows.shape[1:])
    return halves.transpose(1, 2).reshape(rows.shape)


def frequencies(rope: Rope, head_dim: int) -> torch.Tensor:
    """Angles per position [head_dim / 2] float32; as transformers' `ROPE_INIT_FUNCTIONS`."""
    steps = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    inverse = 1.0 / (rope.theta**steps)
    if rope.kind == "linear":
        return inverse / rope.factor
    if rope.kind == "divided":
        return inverse / torch.tensor(rope.divisors)
    if rope.kind == "llama3":
        low = rope.original_max_position / rope.low_freq_factor
        high = rope.original_max_position / rope.high_freq_factor
        wave = 2 * math.pi / inverse
        smooth = (rope.original_max_position / wave - rope.low_freq_factor) / (
            rope.high_freq_factor - rope.low_freq_factor
        )
        between = (1 - smooth) * inverse / rope.factor + smooth * inverse
        stretched = torch.where(wave > low, inverse / rope.factor, between)
        return torch.where(wave < high, inverse, stretched)
    if rope.kind == "yarn":
        kept = 1 - _yarn_ramp(rope, head_dim)
        return inverse / rope.factor * (1 - kept) + inverse * kept
    return inverse


def _yarn_ramp(rope: Rope, head_dim: int) -> torch.Tensor:
    """[head_dim / 2]: 0 where a pair keeps its frequency, 1 where it is divided by the factor."""

    def pair(rotations: float) -> float:
        """The pair that turns so often within the original context."""
        turns = rope.original_max_position / (rotations * 2 * math.pi)
        return head_dim * math.log(turns) / (2 * math.log(rope.theta))

    low, high = pair(rope.beta_fast), pair(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    steps = torch.arange(head_dim // 2, dtype=torch.float32) - low
    return (steps / ((high - low) or 0.001)).clamp(0, 1)


def rotation_table(rope: Rope, head_dim: int, length: int, device: torch.device) -> torch.Tensor:
    """[length, head_dim / 2] complex64: what each pair is multiplied with at each position."""
    angles = torch.outer(torch.arange(length).float(), frequencies(rope, head_dim))
    return (torch.complex(angles.cos(), angles.sin()) * rope.attention_factor).to(device)


def rotate(x: torch.Tensor, rotations: torch.Tensor) -> torch.Tensor:
    """Rotate heads.

    Args:
        x: [T, heads, head_dim] in alternating order; float32 is rotated without conversion.
        rotations: [T, 1, head_dim / 2] complex64.

    Returns:
        [T, heads, head_dim], contiguous, in x's dtype.
    """
    pairs = torch.view_as_complex(x.float().view(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * rotations).flatten(-2).to(x.dtype)
