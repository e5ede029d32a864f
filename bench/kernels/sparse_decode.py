"""Block-sparse decode: 16 blocks of 128, d 128, bf16, beside SGLang's own Triton kernel."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import torch

from keel.kernels.triton.sparse_decode import DecodeConfig, block_sparse_decode, config_for
from kernels.measure import Table, graph_us

BLOCK, K, D, CONTEXT, REQUESTS = 128, 16, 128, 8192, 128
# (query heads, KV heads, batch): the peer's microseconds on 2026-12-01, and how many times faster.
BARS = {
    (16, 1, 1): (14.5, 1.2),
    (16, 1, 16): (21.8, 1.3),
    (16, 1, 64): (41.7, 1.3),
    (16, 1, 128): (60.3, 1.25),
    (64, 4, 64): (98.9, 1.2),
    (64, 4, 128): (199.6, 1.2),
}


@dataclass(frozen=True)
class Inputs:
    """One call's tensors; several sets share the cache and read different parts of it."""

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    req_to_token: torch.Tensor
    req_ids: torch.Tensor
    seq_lens: torch.Tensor
    topk_idx: torch.Tensor

    @property
    def selected_bytes(self) -> int:
        """Keys and values of the selected tokens, each read once."""
        hkv, bs, k = self.topk_idx.shape
        return hkv * bs * k * BLOCK * D * 2 * 2


class Cache:
    """Keys and values of 128 requests of 8192 tokens, slots scattered page by page."""

    def __init__(self, hkv: int, page: int) -> None:
        slots = REQUESTS * CONTEXT
        self.k = torch.randn(slots, hkv, D, device="cuda", dtype=torch.bfloat16)
        self.v = torch.randn_like(self.k)
        pages = torch.randperm(slots // page, device="cuda").view(REQUESTS, -1, 1)
        table = pages * page + torch.arange(page, device="cuda")
        self.table = table.view(REQUESTS, CONTEXT).int()
        self.hkv, self.page = hkv, page

    def inputs(self, hq: int, bs: int, number: int) -> Inputs:
        blocks = CONTEXT // BLOCK
        topk = torch.rand(self.hkv, bs, blocks, device="cuda").argsort(-1)[..., :K].sort(-1).values
        return Inputs(
            torch.randn(bs, hq, D, device="cuda", dtype=torch.bfloat16),
            self.k, self.v, self.table,
            (torch.arange(bs, device="cuda") + number * bs) % REQUESTS,
            torch.full((bs,), CONTEXT, dtype=torch.int32, device="cuda"),
            topk.int(),
        )  # fmt: skip

    def sets(self, hq: int, bs: int) -> list[Inputs]:
        """So many that they exceed the L2 cache (60 MB) at least fourfold."""
        per_call = self.hkv * bs * K * BLOCK * D * 4
        count = max(4, (256 << 20) // per_call)
        return [self.inputs(hq, bs, i) for i in range(min(count, 256))]


def ours(x: Inputs, page: int, config: DecodeConfig | None = None) -> torch.Tensor:
    return block_sparse_decode(
        x.q, x.k_cache, x.v_cache, x.req_to_token, x.req_ids, x.seq_lens, x.topk_idx,
        block=BLOCK, page_size=page, config=config,
    )  # fmt: skip


def peer(folder: Path | None) -> Callable[[Inputs, int], torch.Tensor] | None:
    """SGLang's decode, from an installation or from its files in `folder`; None without."""
    if folder is not None:
        sys.path.insert(0, str(folder))
    try:
        from sglang.kernels.ops.attention.minimax_sparse.decode import topk_sparse
    except ImportError:
        return None

    def call(x: Inputs, page: int) -> torch.Tensor:
        return topk_sparse.flash_decode_with_gqa_share_sparse(
            x.q, None, x.k_cache, x.v_cache, x.req_to_token, x.seq_lens, x.req_ids, BLOCK,
            x.topk_idx, page_size=page if page > 1 else 0,
        )  # fmt: skip

    return call


def float64(x: Inputs) -> torch.Tensor:
    """The oracle's meaning, batched on the device, since the oracle's loops would take minutes."""
    hkv, bs, _ = x.topk_idx.shape
    group = x.q.shape[1] // hkv
    positions = (x.topk_idx[..., None].long() * BLOCK + torch.arange(BLOCK, device="cuda")).flatten(
        2
    )
    slots = x.req_to_token[x.req_ids[None, :, None], positions].long()
    out = torch.empty(bs, hkv * group, D, dtype=torch.float64, device="cuda")
    for h in range(hkv):
        k, v = x.k_cache[slots[h], h].double(), x.v_cache[slots[h], h].double()
        q = x.q[:, h * group : (h + 1) * group].double()
        weights = torch.softmax(q @ k.transpose(1, 2) * D**-0.5, -1)
        out[:, h * group : (h + 1) * group] = weights @ v
    return out


def error(got: torch.Tensor, x: Inputs) -> float:
    expected = float64(x)
    return float((got.double() - expected).norm() / expected.norm())


def run(limit: float, peer_folder: Path | None) -> list[Table]:
    """The table of the bars: every call on its own inputs, all in one graph."""
    theirs = peer(peer_folder)
    tables = []
    for page in (1, 128):
        table = Table(
            f"block-sparse decode, slots in pages of {page} "
            "(us a call in a graph; rotating: inputs exceed L2; same: one set again and again)",
            ["heads", "batch", "ours", "GB/s", "limit %", "peer", "faster", "bar", "same:ours",
             "peer", "faster", "noted peer", "vs noted", "error", "peer's"],
        )  # fmt: skip
        caches = {hkv: Cache(hkv, page) for hkv in (1, 4)}
        for (hq, hkv, bs), (noted, bar) in BARS.items():
            sets = caches[hkv].sets(hq, bs)
            mine = graph_us([partial(ours, x, page) for x in sets])
            same = graph_us([partial(ours, sets[0], page)] * 8)
            other = other_same = other_error = float("nan")
            if theirs:
                other = graph_us([partial(theirs, x, page) for x in sets])
                other_same = graph_us([partial(theirs, sets[0], page)] * 8)
                other_error = error(theirs(sets[0], page), sets[0])
            rate = sets[0].selected_bytes / mine * 1e6
            table.add(
                f"{hq}/{hkv}", bs, mine, round(rate / 1e9), 100 * rate / limit, other,
                f"{other / mine:.2f}", bar, same, other_same, f"{other_same / same:.2f}", noted,
                f"{noted / mine:.2f}", f"{error(ours(sets[0], page), sets[0]):.1e}",
                f"{other_error:.1e}",
            )  # fmt: skip
        tables.append(table)
    return tables


def sweep(only: int = 0, of: int = 1, quick: bool = False) -> list[Table]:
    """Every cut of every case. With `of` > 1, one of so many shares, to fill the compile cache."""
    tables = []
    cuts = [(64, 4, 3), (64, 4, 4), (64, 4, 5), (64, 2, 3), (128, 8, 2), (128, 8, 3), (32, 4, 5)]
    number = 0
    for page in (1, 128):
        caches = {hkv: Cache(hkv, page) for hkv in (1, 4)}
        table = Table(f"cuts, pages of {page}", ["heads", "batch", "best first"])
        for hq, hkv, bs in BARS:
            pairs = bs * hkv
            centre = config_for(pairs, K * BLOCK, BLOCK, page > 1, torch.device("cuda")).parts
            found = []
            sets = caches[hkv].sets(hq, bs)
            for parts, (tile, warps, stages) in product(
                sorted({max(1, centre // 2), centre, min(32, centre * 2)}), cuts
            ):
                if parts > K * BLOCK // tile:
                    continue
                number += 1
                if number % of != only:
                    continue
                config = DecodeConfig(parts, tile, warps, stages)
                if of > 1:
                    ours(sets[0], page, config)
                    continue
                calls = [partial(ours, x, page, config) for x in sets]
                found.append((graph_us(calls, 5 if quick else 20), parts, tile, warps, stages))
            found.sort()
            table.add(
                f"{hq}/{hkv}", bs,
                " ".join(f"{t:.1f}:p{p}t{n}w{w}s{s}" for t, p, n, w, s in found[:7]),
            )  # fmt: skip
        tables.append(table)
    return tables
