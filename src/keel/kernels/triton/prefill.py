"""Attention of the new tokens of several requests over a paged cache: dense and block-sparse."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from keel.kernels.triton.common import (
    LOG2_E,
    check_cache,
    finish,
    resolve_selected,
    sink_kind,
    sink_logits,
    softmax_step,
    split_width,
)


@triton.jit
def _resolve(
    topk_row, table_row, slot_map, i, end, last, offs_n, BLOCK: tl.constexpr, TILE: tl.constexpr,
    SPARSE: tl.constexpr, MAPPED: tl.constexpr,
):  # fmt: skip
    """(slots, positions) of tile `i`; positions from `last` on are not visible to any row."""
    if SPARSE:
        slot, _ = resolve_selected(
            topk_row, table_row, table_row, i, end, last, offs_n, BLOCK, TILE, False, False
        )
        PER_BLOCK: tl.constexpr = BLOCK // TILE
        block = tl.load(topk_row + i // PER_BLOCK, mask=i < end, other=-1)
        start = tl.where(block >= 0, block * BLOCK + (i % PER_BLOCK) * TILE, 1 << 30)
        position = start + offs_n
    else:
        position = i * TILE + offs_n
        slot = tl.load(table_row + position, mask=position < last, other=0)
    if MAPPED:
        slot = tl.load(slot_map + slot, mask=position < last, other=0)
    return slot, position


@triton.jit
def _kernel(
    q, k_cache, v_cache, table, req_ids, cu_seqlens, prefix_lens, topk, cu_blocks, slot_map, sink,
    out,
    q_n, q_h, k_s, k_h, v_s, v_h, table_r, topk_h, topk_n, out_n, out_h,
    scale, k_scale, v_scale, window, tiles,
    D: tl.constexpr, D_MAIN: tl.constexpr, D_TAIL: tl.constexpr, DV: tl.constexpr,
    BLOCK_DV: tl.constexpr, GROUP: tl.constexpr, HEADS: tl.constexpr, QUERIES: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr, BLOCK_Q: tl.constexpr,
    SPARSE: tl.constexpr, MAPPED: tl.constexpr, SHARED: tl.constexpr, SINK: tl.constexpr,
    FP8: tl.constexpr,
):  # fmt: skip
    # Rows are QUERIES tokens times HEADS query heads of one KV head, a token's heads together.
    # Tiles late in a request see the most and start first.
    request = tl.program_id(2)
    HEAD_TILES: tl.constexpr = (GROUP + HEADS - 1) // HEADS
    h = tl.program_id(1) // HEAD_TILES
    first_head = (tl.program_id(1) % HEAD_TILES) * HEADS
    begin = tl.load(cu_seqlens + request)
    length = (tl.load(cu_seqlens + request + 1) - begin).to(tl.int32)
    query = (tl.num_programs(0) - 1 - tl.program_id(0)) * QUERIES
    if query >= length:
        return
    prefix = tl.load(prefix_lens + request).to(tl.int32)
    rid = tl.load(req_ids + request).to(tl.int64)
    rows = tl.arange(0, ROWS)
    token = query + rows // HEADS
    in_group = first_head + rows % HEADS
    row_ok = (rows < QUERIES * HEADS) & (token < length) & (in_group < GROUP)
    heads = h * GROUP + in_group
    place = (begin + token).to(tl.int64)
    position = prefix + token
    last = prefix + tl.minimum(query + QUERIES, length)
    offs_n, offs_d, offs_dv = tl.arange(0, TILE), tl.arange(0, D_MAIN), tl.arange(0, BLOCK_DV)
    dv_ok = offs_dv < DV
    q_row = q + place[:, None] * q_n + heads[:, None] * q_h
    q_tile = tl.load(q_row + offs_d[None, :], mask=row_ok[:, None], other=0.0)
    if D_TAIL > 0:
        offs_t = D_MAIN + tl.arange(0, D_TAIL)
        t_ok = offs_t < D
        q_tail = tl.load(q_row + offs_t[None, :], mask=row_ok[:, None] & t_ok[None, :], other=0.0)
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    acc = tl.zeros((ROWS, BLOCK_DV), tl.float32)

    table_row = table + rid * table_r
    topk_row = topk
    first = 0
    end = tl.cdiv(last, TILE)
    if SPARSE:
        query_block = tl.load(cu_blocks + request) + query // BLOCK_Q
        topk_row = topk + h * topk_h + query_block.to(tl.int64) * topk_n
        end = tiles
    elif window > 0:
        first = tl.maximum(prefix + query - window + 1, 0) // TILE
    k_head = k_cache + h.to(tl.int64) * k_h
    v_head = v_cache + h.to(tl.int64) * v_h + offs_dv[None, :]
    # As in the decode, slots are resolved one step ahead, for the pipeliner's sake.
    slot, where = _resolve(
        topk_row, table_row, slot_map, first, end, last, offs_n, BLOCK, TILE, SPARSE, MAPPED
    )
    for i in tl.range(first, end):
        seen = (where < last)[:, None]
        k_row = k_head + slot.to(tl.int64)[:, None] * k_s
        k = tl.load(k_row + offs_d[None, :], mask=seen, other=0.0)
        if D_TAIL > 0:
            k_tail = tl.load(k_row + offs_t[None, :], mask=seen & t_ok[None, :], other=0.0)
        if not SHARED:
            v = tl.load(
                v_head + slot.to(tl.int64)[:, None] * v_s, mask=seen & dv_ok[None, :], other=0.0
            )
        here = where
        slot, where = _resolve(
            topk_row, table_row, slot_map, i + 1, end, last, offs_n, BLOCK, TILE, SPARSE, MAPPED
        )
        if FP8:
            k = k.to(q_tile.dtype)
        scores = tl.dot(q_tile, tl.trans(k))
        if D_TAIL > 0:
            if FP8:
                k_tail = k_tail.to(q_tile.dtype)
            scores = tl.dot(q_tail, tl.trans(k_tail), scores)
        visible = here[None, :] <= position[:, None]
        if window > 0:
            visible = visible & (here[None, :] > position[:, None] - window)
        scores = tl.where(visible, scores * (scale * k_scale), float("-inf"))
        if SHARED:
            v = k
        elif FP8:
            v = v.to(q_tile.dtype)
        top, total, acc = softmax_step(scores, v, top, total, acc)

    if SINK > 0:
        logits = sink_logits(q_tile, sink, heads, row_ok, offs_d, offs_d < D, D, scale, SINK)
        if SINK == 2 and D_TAIL > 0:
            tail = tl.load(
                sink + heads[:, None] * D + offs_t[None, :],
                mask=row_ok[:, None] & t_ok[None, :],
                other=0.0,
            )
            logits += tl.sum(q_tail.to(tl.float32) * tail.to(tl.float32), 1) * scale
        new_top = tl.maximum(top, logits)
        fade = tl.exp2(top - new_top)
        total = total * fade + tl.exp2(logits - new_top)
        acc = acc * fade[:, None]
    tl.store(
        out + place[:, None] * out_n + heads[:, None] * out_h + offs_dv[None, :],
        finish(acc, total, v_scale).to(out.dtype.element_ty),
        mask=row_ok[:, None] & dv_ok[None, :],
    )


def _launch(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    req_to_token: torch.Tensor,
    req_ids: torch.Tensor,
    cu_seqlens: torch.Tensor,
    prefix_lens: torch.Tensor,
    max_q_len: int,
    *,
    scale: float | None,
    sink: torch.Tensor | None,
    k_scale: float,
    v_scale: float,
    out: torch.Tensor | None,
    window: int = 0,
    topk_idx: torch.Tensor | None = None,
    block: int = 0,
    block_q: int = 0,
    slot_map: torch.Tensor | None = None,
) -> torch.Tensor:
    fp8 = check_cache(q, k_cache, v_cache)
    n, hq, d = q.shape
    hkv, dv = k_cache.shape[1], v_cache.shape[2]
    if out is None:
        out = torch.empty(n, hq, dv, dtype=q.dtype, device=q.device)
    if n == 0 or max_q_len == 0:
        return out
    group = hq // hkv
    d_main, d_tail = split_width(d)
    wide = max(d_main, dv) > 256
    heads = min(triton.next_power_of_2(group), 32 if wide else 128)
    queries = max(1, min((32 if wide else 128) // heads, block_q or 128))
    rows = max(16, queries * heads)
    shared = (
        v_cache.data_ptr() == k_cache.data_ptr() and dv == d_main and k_cache.stride() ==
        v_cache.stride()
    )  # fmt: skip
    tile = min(32 if wide else 64, block or 128)
    sparse = topk_idx is not None
    cu_blocks = cu_seqlens
    if sparse:
        lengths = cu_seqlens[1:] - cu_seqlens[:-1]
        cu_blocks = ((lengths + block_q - 1) // block_q).cumsum(0, dtype=torch.int32)
        cu_blocks = torch.nn.functional.pad(cu_blocks, (1, 0))
    topk = req_to_token if topk_idx is None else topk_idx
    _kernel[(triton.cdiv(max_q_len, queries), hkv * triton.cdiv(group, heads), len(req_ids))](
        q, k_cache, v_cache, req_to_token, req_ids, cu_seqlens, prefix_lens, topk, cu_blocks,
        req_to_token if slot_map is None else slot_map, q if sink is None else sink, out,
        q.stride(0), q.stride(1), k_cache.stride(0), k_cache.stride(1), v_cache.stride(0),
        v_cache.stride(1), req_to_token.stride(0), topk.stride(0), topk.stride(1),
        out.stride(0), out.stride(1), (d**-0.5 if scale is None else scale) * LOG2_E, k_scale,
        v_scale, window, topk.shape[-1] * block // tile,
        D=d, D_MAIN=d_main, D_TAIL=d_tail, DV=dv, BLOCK_DV=triton.next_power_of_2(dv), GROUP=group,
        HEADS=heads, QUERIES=queries, ROWS=rows, TILE=tile, BLOCK=block, BLOCK_Q=block_q,
        SPARSE=sparse, MAPPED=slot_map is not None, SHARED=shared, SINK=sink_kind(sink, hq, d),
        FP8=fp8, num_warps=4 if rows <= 64 else 8, num_stages=2 if wide else 3,
    )  # fmt: skip
    return out


def block_sparse_prefill(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    req_to_token: torch.Tensor,
    req_ids: torch.Tensor,
    cu_seqlens: torch.Tensor,
    prefix_lens: torch.Tensor,
    topk_idx: torch.Tensor,
    max_q_len: int,
    *,
    block: int = 128,
    block_q: int = 1,
    scale: float | None = None,
    sink: torch.Tensor | None = None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    slot_map: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """New tokens attend, causally, to the blocks that their query block chose.

    The oracle is `reference.attention.block_sparse_prefill`; relative error under 4e-3 in bfloat16
    and 1e-3 in float16. The launch depends on shapes and `max_q_len` only.

    Args:
        q: [n, hq, d] bfloat16 or float16, requests one after another. cu_seqlens: [bs + 1] int32,
            where each begins. prefix_lens: [bs] int32, tokens in the cache before them; the new
            tokens' keys and values are in the cache too.
        k_cache: [slots, hkv, d], v_cache: [slots, hkv, dv], of q's dtype or both one fp8.
        req_to_token: [reqs, ctx] int32. req_ids: [bs].
        topk_idx: [hkv, query blocks, k] int32, -1 for none; a request has
            ceil(new tokens / block_q) of them, and they follow one another without gaps.
        max_q_len: at least the longest request's new tokens.
        block, block_q: powers of two; block at least 16.
        sink: per query head, a logit [hq] or a key without a value [hq, d].
        slot_map: [logical slots] int32, device slot of each of req_to_token's (HiSparse).

    Returns:
        [n, hq, dv] of q's dtype.

    Raises:
        ValueError: shapes or dtypes that do not go together.
    """
    if block < 16 or block & (block - 1) or block_q < 1 or block_q & (block_q - 1):
        raise ValueError(f"block and block_q are powers of two, block at least 16, not {block} "
                         f"and {block_q}")  # fmt: skip
    if topk_idx.shape[0] != k_cache.shape[1] or topk_idx.stride(2) != 1:
        raise ValueError(f"topk_idx must be [{k_cache.shape[1]}, query blocks, k] with k "
                         f"contiguous, not {tuple(topk_idx.shape)}")  # fmt: skip
    return _launch(
        q, k_cache, v_cache, req_to_token, req_ids, cu_seqlens, prefix_lens, max_q_len,
        scale=scale, sink=sink, k_scale=k_scale, v_scale=v_scale, out=out, topk_idx=topk_idx,
        block=block, block_q=block_q, slot_map=slot_map,
    )  # fmt: skip


def paged_prefill(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    req_to_token: torch.Tensor,
    req_ids: torch.Tensor,
    cu_seqlens: torch.Tensor,
    prefix_lens: torch.Tensor,
    max_q_len: int,
    *,
    scale: float | None = None,
    window: int = 0,
    sink: torch.Tensor | None = None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """New tokens attend, causally, to all of their request's tokens.

    The oracle is `reference.attention.paged_prefill`; relative error under 4e-3 in bfloat16 and
    1e-3 in float16. Args as in `block_sparse_prefill`, and for MLA `v_cache` is a view of the first
    columns of `k_cache`; they are then read once.

    Args:
        window: a token sees the newest so many tokens, itself counted; 0 for all.

    Returns:
        [n, hq, dv] of q's dtype.

    Raises:
        ValueError: shapes or dtypes that do not go together.
    """
    return _launch(
        q, k_cache, v_cache, req_to_token, req_ids, cu_seqlens, prefix_lens, max_q_len,
        scale=scale, sink=sink, k_scale=k_scale, v_scale=v_scale, out=out, window=window,
    )  # fmt: skip
