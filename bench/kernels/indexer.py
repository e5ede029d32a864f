"""The indexer: scores beside the copy limit, selection in microseconds."""

from __future__ import annotations

from functools import partial

import torch

from keel.kernels.triton.indexer import block_scores, select_blocks
from kernels.measure import Table, graph_us


def run(limit: float) -> list[Table]:
    table = Table(
        "indexer, 4 index heads over 1 key head, d 128, bf16, decode",
        ["context", "batch", "scores us", "GB/s", "limit %", "select us", "torch.topk us"],
    )
    for context, bs in ((8192, 1), (131072, 1), (8192, 64), (32768, 64), (131072, 16)):
        keys = torch.randn(bs * context, 1, 128, device="cuda", dtype=torch.bfloat16)
        q = torch.randn(bs, 4, 128, device="cuda", dtype=torch.bfloat16)
        table_of = torch.randperm(bs * context, device="cuda").view(bs, context).int()
        visible = torch.full((bs,), context, dtype=torch.int32, device="cuda")
        which = torch.arange(bs, dtype=torch.int32, device="cuda")
        score = partial(block_scores, q, keys, table_of, which, which, visible)
        scores = score()
        us = graph_us([score] * 4, 10)
        select = graph_us([partial(select_blocks, scores, visible)] * 4, 10)
        theirs = graph_us([partial(torch.topk, scores, 16)] * 4, 10)
        rate = keys.numel() * 2 / us * 1e6
        table.add(context, bs, us, round(rate / 1e9), 100 * rate / limit, select, theirs)
    return [table]
