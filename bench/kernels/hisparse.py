"""HiSparse swap-in: its share of the link on misses, and its time without a miss."""

from __future__ import annotations

from functools import partial

import torch

from keel.kernels.cuda import hisparse
from keel.kernels.reference.hisparse import Residency
from kernels.measure import Table, event_us, graph_us

BLOCK, K, CONTEXT, ITEM = 128, 16, 32768, 256
SELECTED = BLOCK * K


def gather_limit(rows: int) -> float:
    """Bytes a second of a plain zero-copy gather of scattered 256-byte rows."""
    gen = torch.Generator().manual_seed(0)
    host = torch.empty(1 << 21, ITEM, dtype=torch.uint8).random_(generator=gen).pin_memory()
    device = torch.empty(rows, ITEM, dtype=torch.uint8, device="cuda")
    pools = hisparse.Pools(host, device)
    plan = hisparse.MissPlan(
        torch.randperm(1 << 21, generator=gen)[:rows].view(1, rows).cuda(),
        torch.arange(rows, dtype=torch.int32, device="cuda").view(1, rows),
        torch.tensor([rows], dtype=torch.int32, device="cuda"),
    )
    real = torch.ones(1, dtype=torch.int32, device="cuda")
    best = min(
        event_us(lambda b=b: hisparse.replay(plan, pools, real, blocks=b), 10)
        for b in (32, 64, 132)
    )
    return rows * ITEM / best * 1e6


class Scene:
    """Requests of 32k tokens whose working sets hold what a first selection brought in."""

    def __init__(self, bs: int, hot: int, values: bool, layers: int = 1) -> None:
        gen = torch.Generator().manual_seed(bs)
        self.bs, self.hot = bs, hot
        places = bs * (hot + 1)
        self.host_tokens = bs * CONTEXT

        def buffers() -> tuple[torch.Tensor, torch.Tensor]:
            host = torch.empty(self.host_tokens, ITEM, dtype=torch.uint8).pin_memory()
            host[::64].random_()
            return host, torch.empty(places, ITEM, dtype=torch.uint8, device="cuda")

        k, v = buffers(), buffers() if values else (None, None)
        self.pools = hisparse.Pools(k[0], k[1], v[0], v[1])
        self.state = Residency(
            torch.arange(hot + 1, device="cuda").repeat(bs, 1).int(),
            torch.arange(hot, device="cuda").repeat(bs, 1).to(torch.int16),
            torch.randperm(places, generator=gen).view(bs, hot + 1).int().cuda(),
            torch.randperm(self.host_tokens, generator=gen).view(bs, CONTEXT).cuda(),
        )
        self.req_ids = torch.arange(bs, device="cuda")
        self.seq_lens = torch.full((bs,), CONTEXT, dtype=torch.int32, device="cuda")
        self.real = torch.tensor([bs], dtype=torch.int32, device="cuda")
        self.out = torch.empty(bs, SELECTED, dtype=torch.int32, device="cuda")
        self.plan = hisparse.MissPlan.allocate(bs, SELECTED, torch.device("cuda"))

    def swap_in(self, blocks: torch.Tensor, skip_copy: bool = False, record: bool = False) -> None:
        hisparse.swap_in(
            blocks, self.state, self.pools, self.req_ids, self.seq_lens, self.real, self.out,
            block=BLOCK, skip_copy=skip_copy, plan=self.plan if record else None,
        )  # fmt: skip

    def selections(self, fresh: int, count: int) -> list[torch.Tensor]:
        """Selections of which each has `fresh` blocks that no recent one had."""
        blocks = CONTEXT // BLOCK
        resident = torch.arange(K - fresh)
        rows, at = [], K
        for _ in range(count):
            new = torch.arange(at, at + fresh) % (blocks - K - 1) + K
            at += fresh
            rows.append(torch.cat([resident, new]).int().repeat(self.bs, 1).cuda())
        return rows


def run(limit: float) -> list[Table]:
    table = Table(
        f"HiSparse swap-in, {SELECTED} selected as blocks of {BLOCK}, items of {ITEM} bytes "
        f"(zero-copy gather limit {limit / 1e9:.1f} GB/s)",
        [
            "buffers",
            "slots",
            "batch",
            "misses %",
            "us",
            "missed MB",
            "GB/s",
            "limit %",
            "no copy us",
        ],
    )
    for values, hot, bs, fresh in (
        (True, 4096, 64, 4), (True, 4096, 64, 1), (False, 4096, 64, 4), (True, 8192, 64, 4),
        (True, 4096, 16, 4), (True, 4096, 1, 4), (True, 4096, 16, 0), (True, 2048, 16, 0),
        (True, 8192, 16, 0), (False, 4096, 16, 0), (True, 4096, 64, 0),
    ):  # fmt: skip
        scene = Scene(bs, hot, values)
        rows = scene.selections(fresh, 24)
        for turn in range(2):
            for row in rows:
                scene.swap_in(row, record=True)
                # From the second turn on, as in the timed ones, each brings in what it is to.
                assert turn == 0 or int(scene.plan.count.sum()) == fresh * BLOCK * bs
        us = graph_us([partial(scene.swap_in, r) for r in rows], 12)
        dry = graph_us([partial(scene.swap_in, r, skip_copy=True) for r in rows], 12)
        missed = fresh * BLOCK * bs * ITEM * (2 if values else 1)
        rate = missed / us * 1e6
        table.add(
            "K+V" if values else "K", hot, bs, round(100 * fresh / K), us, missed / 1e6,
            rate / 1e9, 100 * rate / limit, dry,
        )  # fmt: skip
    return [table]
