"""The memory that keys and values of all requests share, one slot a token."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from math import prod

import torch


@dataclass(frozen=True)
class KVLayout:
    """The shape of one token's keys and values.

    Args:
        num_layers, num_kv_heads, head_dim: of the model's part on this rank.
        dtype: of the stored numbers.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def bytes_per_token(self) -> int:
        """Of keys and values, all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.dtype.itemsize


class KVPool:
    """Keys and values by layer and slot.

    Slot 0 belongs to nobody: padding reads and writes there, so its numbers are finite but mean
    nothing. `keys[layer]` and `values[layer]` are [num_slots, num_kv_heads, head_dim].
    """

    def __init__(self, layout: KVLayout, num_tokens: int, device: torch.device) -> None:
        self.layout = layout
        self.num_slots = num_tokens + 1
        shape = (self.num_slots, layout.num_kv_heads, layout.head_dim)

        def buffers() -> list[torch.Tensor]:
            return [_zeros(shape, layout.dtype, device) for _ in range(layout.num_layers)]

        self.keys = buffers()
        self.values = buffers()

    def write(self, layer: int, slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Store new tokens: `slots` [T] int64; `k`, `v` [T, num_kv_heads, head_dim]."""
        self.keys[layer].index_copy_(0, slots, k)
        self.values[layer].index_copy_(0, slots, v)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros, since padding must not bring NaN into a masked sum.

    On the CPU they are pages of the kernel's that become memory when they are written; torch.zeros
    would touch gigabytes at start.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    pages = mmap.mmap(-1, prod(shape) * dtype.itemsize)
    return torch.frombuffer(pages, dtype=dtype).view(shape)
