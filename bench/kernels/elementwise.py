"""The small fused operations beside what torch has for the same."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F

from keel.kernels.triton import elementwise as ours
from kernels.measure import Call, Table, graph_us


def _rms_norm(x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x + residual, (x.shape[1],), weight, 1e-5)


def _silu_mul(x: torch.Tensor) -> torch.Tensor:
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


def _rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def _store(
    k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor, ks: torch.Tensor, vs: torch.Tensor
) -> None:
    ks.index_copy_(0, slots, k)
    vs.index_copy_(0, slots, v)


def run(limit: float) -> list[Table]:
    table = Table(
        "small operations, bf16 (us a call in a graph)",
        ["operation", "shape", "ours", "GB/s", "limit %", "torch", "faster"],
    )
    for n in (64, 8192):
        x, r = (torch.randn(n, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        weight = torch.randn(4096, device="cuda", dtype=torch.bfloat16)
        wide = torch.randn(n, 2 * 14336, device="cuda", dtype=torch.bfloat16)
        heads = torch.randn(n, 32, 128, device="cuda", dtype=torch.bfloat16)
        cos, sin = (torch.randn(n, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        k, v = (torch.randn(n, 8, 128, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        ks, vs = (torch.empty(65536, 8, 128, device="cuda", dtype=torch.bfloat16) for _ in "kv")
        slots = torch.randperm(65536, device="cuda")[:n]
        cases: list[tuple[str, str, int, Call, Call]] = [
            ("rms_norm + residual", f"{n} x 4096", 4 * x.numel() * 2,
             partial(ours.rms_norm, x, weight, 1e-5, r), partial(_rms_norm, x, weight, r)),
            ("silu_mul", f"{n} x 14336", 3 * n * 14336 * 2, partial(ours.silu_mul, wide),
             partial(_silu_mul, wide)),
            ("rope", f"{n} x 32 x 128", 2 * heads.numel() * 2, partial(ours.rope_, heads, cos, sin),
             partial(_rope, heads, cos[:, None], sin[:, None])),
            ("store_kv", f"{n} x 8 x 128", 4 * k.numel() * 2,
             partial(ours.store_kv, k, v, slots, ks, vs), partial(_store, k, v, slots, ks, vs)),
        ]  # fmt: skip
        for name, shape, moved, mine, theirs in cases:
            a, b = graph_us([mine] * 8, 10), graph_us([theirs] * 8, 10)
            rate = moved / a * 1e6
            table.add(name, shape, a, round(rate / 1e9), 100 * rate / limit, b, f"{b / a:.2f}")
    return [table]
