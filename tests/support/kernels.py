"""Inputs for the kernels: caches with scattered tokens, and the relative error of a result."""

from __future__ import annotations

from typing import Any

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TOLERANCE = {torch.bfloat16: 4e-3, torch.float16: 1e-3}


def relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    """||got - expected|| / ||expected||; infinite where `got` is not finite."""
    got, expected = got.double().cpu(), expected.double().cpu()
    if not torch.isfinite(got).all():
        return float("inf")
    norm = expected.norm()
    return float((got - expected).norm() / (norm if norm > 0 else 1.0))


def paged_cache(
    lengths: list[int],
    hkv: int,
    d: int,
    dtype: torch.dtype,
    *,
    seed: int = 0,
    page: int = 1,
    cache_dtype: torch.dtype | None = None,
    dv: int | None = None,
) -> dict[str, Any]:
    """Keys and values in pages scattered over a cache; rows of the table in reverse order.

    The table's entries past a request's end point outside the cache, and so must not be used.
    """
    gen = torch.Generator().manual_seed(seed)
    reqs = len(lengths)
    pages = max(1, -(-max(lengths) // page))
    slots = (reqs * pages + 1) * page

    def numbers(width: int) -> torch.Tensor:
        return torch.randn(slots, hkv, width, generator=gen).to(dtype).to(cache_dtype or dtype)

    order = torch.randperm(reqs * pages + 1, generator=gen)[: reqs * pages].view(reqs, pages, 1)
    table = (order * page + torch.arange(page)).view(reqs, pages * page).int()
    req_ids = torch.arange(reqs).flip(0)
    for b, length in enumerate(lengths):
        table[req_ids[b], length:] = 1 << 30
    return {
        "k_cache": numbers(d).to(DEVICE),
        "v_cache": numbers(dv or d).to(DEVICE),
        "req_to_token": table.to(DEVICE),
        "req_ids": req_ids.to(DEVICE),
    }


def queries(n: int, hq: int, d: int, dtype: torch.dtype, seed: int = 1) -> torch.Tensor:
    gen = torch.Generator().manual_seed(seed)
    return torch.randn(n, hq, d, generator=gen).to(dtype).to(DEVICE)


def selection(
    lengths: list[int], hkv: int, k: int, block: int, *, seed: int = 0, wild: bool = False
) -> torch.Tensor:
    """[hkv, bs, k] ids of blocks that a request has; -1 behind them.

    Args:
        wild: -1 between them, and blocks past the sequence's end.
    """
    gen = torch.Generator().manual_seed(seed)
    out = torch.full((hkv, len(lengths), k), -1, dtype=torch.int32)
    for h in range(hkv):
        for b, length in enumerate(lengths):
            blocks = -(-length // block) + (2 if wild else 0)
            chosen = torch.randperm(blocks, generator=gen)[:k].int()
            if wild:
                out[h, b, torch.randperm(k, generator=gen)[: len(chosen)]] = chosen
            else:
                out[h, b, : len(chosen)] = chosen.sort().values
    return out.to(DEVICE)
