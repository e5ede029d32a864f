"""Dense paged attention: decode beside the copy limit, prefill in TFLOP/s."""

from __future__ import annotations

from functools import partial

import torch

from keel.kernels.triton.common import DecodeConfig
from keel.kernels.triton.paged_decode import paged_decode
from keel.kernels.triton.prefill import block_sparse_prefill, paged_prefill
from kernels.measure import Table, graph_us

D = 128


def _table(requests: int, context: int, page: int) -> torch.Tensor:
    pages = torch.randperm(requests * context // page, device="cuda").view(requests, -1, 1)
    slots = pages * page + torch.arange(page, device="cuda")
    return slots.view(requests, context).int()


def _bf16(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def decode(limit: float) -> Table:
    table = Table(
        "dense paged decode, bf16, every key and value read once (bar: 85 % of the copy limit at "
        "8 KV heads, 8192 tokens, batch 64)",
        ["heads", "page", "context", "batch", "us", "GB/s", "limit %", "others (us: cut)"],
    )
    for hq, hkv, context, bs, page in (
        (32, 8, 8192, 64, 1), (64, 8, 8192, 64, 1), (32, 8, 8192, 64, 64), (32, 8, 2048, 8, 1),
        (32, 8, 32768, 1, 1),
    ):  # fmt: skip
        k, v = _bf16(bs * context, hkv, D), _bf16(bs * context, hkv, D)
        args = {
            "k_cache": k, "v_cache": v, "req_to_token": _table(bs, context, page),
            "req_ids": torch.arange(bs, device="cuda"),
            "seq_lens": torch.full((bs,), context, dtype=torch.int32, device="cuda"),
        }  # fmt: skip
        q = _bf16(bs, hq, D)
        us = graph_us([partial(paged_decode, q, **args)] * 4, 10)
        moved = 2 * k.numel() * 2
        others = []
        for cut in ((1, 64, 4, 3), (2, 64, 4, 3), (4, 64, 4, 3), (2, 64, 4, 4), (1, 128, 8, 2),
                    (2, 128, 8, 2), (2, 64, 2, 3), (1, 64, 4, 4)):  # fmt: skip
            call = partial(paged_decode, q, **args, config=DecodeConfig(*cut))
            others.append((graph_us([call] * 4, 5), "p{}t{}w{}s{}".format(*cut)))
        rate = moved / us * 1e6
        table.add(
            f"{hq}/{hkv}", page, context, bs, us, round(rate / 1e9), 100 * rate / limit,
            " ".join(f"{t:.0f}:{c}" for t, c in sorted(others)[:5]),
        )  # fmt: skip
    context, bs = 8192, 16
    k = _bf16(bs * context, 1, 576)
    call = partial(
        paged_decode, _bf16(bs, 128, 576), k, k[..., :512], _table(bs, context, 1),
        torch.arange(bs, device="cuda"),
        torch.full((bs,), context, dtype=torch.int32, device="cuda"),
    )  # fmt: skip
    us = graph_us([call] * 4, 10)
    rate = k.numel() * 2 / us * 1e6
    table.add("128/1 MLA", 1, context, bs, us, round(rate / 1e9), 100 * rate / limit, "")
    return table


def prefill() -> Table:
    table = Table(
        "prefill, bf16, causal (FLOPs of visible pairs only; dense bf16 product peaks near 790)",
        ["kind", "heads", "prefix", "new", "us", "TFLOP/s"],
    )
    for kind, hq, hkv, prefix, new in (
        ("dense", 32, 8, 0, 4096), ("dense", 32, 8, 8192, 2048), ("sparse", 16, 1, 8192, 2048),
        ("sparse", 64, 4, 8192, 2048),
    ):  # fmt: skip
        total = prefix + new
        cu = torch.tensor([0, new], dtype=torch.int32, device="cuda")
        args = (
            _bf16(new, hq, D), _bf16(total, hkv, D), _bf16(total, hkv, D), _table(1, total, 1),
            torch.zeros(1, dtype=torch.int64, device="cuda"), cu,
            torch.tensor([prefix], dtype=torch.int32, device="cuda"),
        )  # fmt: skip
        if kind == "dense":
            us = graph_us([partial(paged_prefill, *args, new)] * 2, 10)
            pairs = new * prefix + new * (new + 1) // 2
        else:
            topk = torch.rand(hkv, new, prefix // 128, device="cuda").argsort(-1)[..., :16].int()
            us = graph_us([partial(block_sparse_prefill, *args, topk.contiguous(), new)] * 2, 10)
            pairs = new * 16 * 128
        table.add(kind, f"{hq}/{hkv}", prefix, new, us, 4 * D * hq * pairs / us * 1e-6)
    return table


def run(limit: float) -> list[Table]:
    return [decode(limit), prefill()]
