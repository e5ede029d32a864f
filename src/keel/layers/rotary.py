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
    return inverse


def rotation_table(rope: Rope, head_dim: int, length: int, device: torch.device) -> torch.Tensor:
    """[length, head_dim / 2] complex64: the rotation of each pair at each position."""
    angles = torch.outer(torch.arange(length).float(), frequencies(rope, head_dim))
    return torch.complex(angles.cos(), angles.sin()).to(device)


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
