"""Dense attention of one new token per request over a paged cache, split over the sequence."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from keel.kernels.triton.common import (
    LOG2_E,
    DecodeConfig,
    Workspace,
    check_cache,
    finish,
    merge_parts,
    power_of_two_below,
    processors,
    sink_kind,
    sink_logits,
    softmax_step,
    split_width,
    workspace_for,
)


@triton.jit
def _kernel(
    q, k_cache, v_cache, table, req_ids, seq_lens, sink, out,
    part_out, part_top, part_total, tickets,
    q_b, q_h, k_s, k_h, v_s, v_h, table_r, out_b, out_h,
    scale, k_scale, v_scale, window, hkv,
    D: tl.constexpr, D_MAIN: tl.constexpr, D_TAIL: tl.constexpr, DV: tl.constexpr,
    BLOCK_DV: tl.constexpr, GROUP: tl.constexpr, HEADS: tl.constexpr, ROWS: tl.constexpr,
    TILE: tl.constexpr, PARTS: tl.constexpr, SHARED: tl.constexpr, SINK: tl.constexpr,
    FP8: tl.constexpr,
):  # fmt: skip
    HEAD_TILES: tl.constexpr = (GROUP + HEADS - 1) // HEADS
    group = tl.program_id(0) // PARTS  # of query heads that share reads, and a ticket
    part = tl.program_id(0) % PARTS
    pair = group // HEAD_TILES
    b, h = pair // hkv, pair % hkv
    seq_len = tl.load(seq_lens + b).to(tl.int32)
    rid = tl.load(req_ids + b).to(tl.int64)
    rows = tl.arange(0, ROWS)
    in_group = (group % HEAD_TILES) * HEADS + rows
    row_ok = (rows < HEADS) & (in_group < GROUP)
    heads = h * GROUP + in_group
    offs_n, offs_d, offs_dv = tl.arange(0, TILE), tl.arange(0, D_MAIN), tl.arange(0, BLOCK_DV)
    dv_ok = offs_dv < DV
    q_row = q + b.to(tl.int64) * q_b + heads[:, None] * q_h
    q_tile = tl.load(q_row + offs_d[None, :], mask=row_ok[:, None], other=0.0)
    if D_TAIL > 0:
        offs_t = D_MAIN + tl.arange(0, D_TAIL)
        t_ok = offs_t < D
        q_tail = tl.load(q_row + offs_t[None, :], mask=row_ok[:, None] & t_ok[None, :], other=0.0)
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    acc = tl.zeros((ROWS, BLOCK_DV), tl.float32)

    oldest = 0
    if window > 0:
        oldest = tl.maximum(seq_len - window, 0)
    # Parts are cut by the length, in whole tiles from the tile of the oldest token seen.
    origin = oldest // TILE
    share = tl.cdiv(tl.cdiv(seq_len, TILE) - origin, PARTS)
    first = origin + part * share
    end = tl.minimum(first + share, tl.cdiv(seq_len, TILE))
    table_row = table + rid * table_r
    k_head = k_cache + h.to(tl.int64) * k_h
    v_head = v_cache + h.to(tl.int64) * v_h + offs_dv[None, :]
    where = first * TILE + offs_n
    # As in the sparse decode, slots are resolved one step ahead, for the pipeliner's sake.
    slot = tl.load(table_row + where, mask=where < seq_len, other=0)
    for i in tl.range(first, end):
        here = i * TILE + offs_n
        seen = (here < seq_len)[:, None]
        k_row = k_head + slot.to(tl.int64)[:, None] * k_s
        k = tl.load(k_row + offs_d[None, :], mask=seen, other=0.0)
        if D_TAIL > 0:
            k_tail = tl.load(k_row + offs_t[None, :], mask=seen & t_ok[None, :], other=0.0)
        if not SHARED:
            v = tl.load(
                v_head + slot.to(tl.int64)[:, None] * v_s, mask=seen & dv_ok[None, :], other=0.0
            )
        where = here + TILE
        slot = tl.load(table_row + where, mask=where < seq_len, other=0)
        if FP8:
            k = k.to(q_tile.dtype)
        scores = tl.dot(q_tile, tl.trans(k))
        if D_TAIL > 0:
            if FP8:
                k_tail = k_tail.to(q_tile.dtype)
            scores = tl.dot(q_tail, tl.trans(k_tail), scores)
        visible = (here < seq_len) & (here >= oldest)
        scores = tl.where(visible[None, :], scores * (scale * k_scale), float("-inf"))
        if SHARED:
            v = k
        elif FP8:
            v = v.to(q_tile.dtype)
        top, total, acc = softmax_step(scores, v, top, total, acc)

    if SINK > 0 and part == 0:
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
        top = new_top

    out_row = out + b.to(tl.int64) * out_b
    if PARTS == 1:
        tl.store(
            out_row + heads[:, None] * out_h + offs_dv[None, :],
            finish(acc, total, v_scale).to(out.dtype.element_ty),
            mask=row_ok[:, None] & dv_ok[None, :],
        )
    else:
        at = (group * PARTS + part) * ROWS + rows
        sums = part_out + at.to(tl.int64)[:, None] * BLOCK_DV + offs_dv[None, :]
        tl.store(sums, acc, mask=row_ok[:, None])
        tl.store(part_top + at, top)
        tl.store(part_total + at, total)
        # Every thread's stores come before the ticket, and the ticket before any load below.
        tl.debug_barrier()
        ticket = tl.atomic_add(tickets + group, 1, sem="acq_rel")
        if ticket == PARTS - 1:
            tl.store(tickets + group, 0)
            merge_parts(
                part_out, part_top, part_total, group * PARTS, out_row, out_h, heads, row_ok,
                v_scale, PARTS, ROWS, BLOCK_DV, DV,
            )  # fmt: skip


def config_for(groups: int, wide: bool, device: torch.device) -> DecodeConfig:
    """The cut for a number of groups of query heads that share reads, from shapes alone.

    Four waves of two programs a multiprocessor, since requests differ in length and a part of the
    longest is what the rest waits for. Figures: bench/kernels/NOTES.md.
    """
    parts = power_of_two_below(min(8 * processors(device) // groups, 16))
    if wide:
        return DecodeConfig(parts, 32, warps=4, stages=2)
    return DecodeConfig(parts, 64, warps=4, stages=3)


def paged_decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    req_to_token: torch.Tensor,
    req_ids: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    scale: float | None = None,
    window: int = 0,
    sink: torch.Tensor | None = None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    out: torch.Tensor | None = None,
    workspace: Workspace | None = None,
    config: DecodeConfig | None = None,
) -> torch.Tensor:
    """One new token per request attends to all of its request's tokens.

    The launch depends on shapes only, so it can be captured in a CUDA graph. The oracle is
    `reference.attention.paged_decode`; relative error under 4e-3 in bfloat16 and 1e-3 in float16.

    Args:
        q: [bs, hq, d] bfloat16 or float16.
        k_cache: [slots, hkv, d], v_cache: [slots, hkv, dv], of q's dtype or both one fp8. For MLA,
            v_cache is a view of the first columns of k_cache; they are then read once.
        req_to_token: [reqs, ctx] int32. req_ids: [bs].
        seq_lens: [bs], the new token counted; 0 for a padded row, for which zeros come out.
        window: the newest so many tokens (the new one counted) are seen; 0 for all.
        sink: per query head, a logit [hq] or a key without a value [hq, d].
        k_scale, v_scale: what stored keys and values are multiplied by.

    Returns:
        [bs, hq, dv] of q's dtype.

    Raises:
        ValueError: shapes or dtypes that do not go together.
    """
    fp8 = check_cache(q, k_cache, v_cache)
    bs, hq, d = q.shape
    hkv, dv = k_cache.shape[1], v_cache.shape[2]
    if out is None:
        out = torch.empty(bs, hq, dv, dtype=q.dtype, device=q.device)
    if bs == 0:
        return out
    group = hq // hkv
    d_main, d_tail = split_width(d)
    wide = max(d_main, dv) > 256
    heads = min(triton.next_power_of_2(group), 16 if wide else 64)
    rows, block_dv = max(16, heads), triton.next_power_of_2(dv)
    groups = bs * hkv * triton.cdiv(group, heads)
    cut = config or config_for(groups, wide, q.device)
    shared = (
        v_cache.data_ptr() == k_cache.data_ptr() and dv == d_main and k_cache.stride() ==
        v_cache.stride()
    )  # fmt: skip
    if workspace is None:
        parts = groups * cut.parts if cut.parts > 1 else 1
        workspace = workspace_for(parts, groups, rows, block_dv, q.device)
    _kernel[(groups * cut.parts,)](
        q, k_cache, v_cache, req_to_token, req_ids, seq_lens, q if sink is None else sink, out,
        workspace.out, workspace.top, workspace.total, workspace.tickets,
        q.stride(0), q.stride(1), k_cache.stride(0), k_cache.stride(1), v_cache.stride(0),
        v_cache.stride(1), req_to_token.stride(0), out.stride(0), out.stride(1),
        (d**-0.5 if scale is None else scale) * LOG2_E, k_scale, v_scale, window, hkv,
        D=d, D_MAIN=d_main, D_TAIL=d_tail, DV=dv, BLOCK_DV=block_dv, GROUP=group, HEADS=heads,
        ROWS=rows, TILE=cut.tile, PARTS=cut.parts, SHARED=shared, SINK=sink_kind(sink, hq, d),
        FP8=fp8, num_warps=cut.warps, num_stages=cut.stages,
    )  # fmt: skip
    return out
