"""Block-sparse GQA attention of one new token per request: only the selected blocks are read."""

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
    resolve_selected,
    sink_kind,
    sink_logits,
    softmax_step,
    workspace_for,
)


@triton.jit
def _kernel(
    q, k_cache, v_cache, table, req_ids, seq_lens, topk, device_slots, sink, out,
    part_out, part_top, part_total, tickets,
    q_b, q_h, k_s, k_h, v_s, v_h, table_r, topk_h, topk_b, slots_h, slots_b, out_b, out_h,
    scale, k_scale, v_scale, tiles, tiles_per_part, hkv,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    GROUP: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
    PARTS: tl.constexpr, SLOTS: tl.constexpr, CONTIGUOUS: tl.constexpr, SINK: tl.constexpr,
    FP8: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(0) // PARTS
    part = tl.program_id(0) % PARTS
    b, h = pair // hkv, pair % hkv
    seq_len = tl.load(seq_lens + b)
    rid = tl.load(req_ids + b).to(tl.int64)
    rows = tl.arange(0, ROWS)
    offs_n, offs_d, offs_dv = tl.arange(0, TILE), tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_DV)
    row_ok, d_ok, dv_ok = rows < GROUP, offs_d < D, offs_dv < DV
    heads = h * GROUP + rows
    q_tile = tl.load(
        q + b.to(tl.int64) * q_b + heads[:, None] * q_h + offs_d[None, :],
        mask=row_ok[:, None] & d_ok[None, :],
        other=0.0,
    )
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    acc = tl.zeros((ROWS, BLOCK_DV), tl.float32)

    first = part * tiles_per_part
    topk_row = topk + h * topk_h + b * topk_b
    slots_row = device_slots + h * slots_h + b * slots_b
    table_row = table + rid * table_r
    k_head = k_cache + h.to(tl.int64) * k_h + offs_d[None, :]
    v_head = v_cache + h.to(tl.int64) * v_h + offs_dv[None, :]
    end = tl.minimum(first + tiles_per_part, tiles)
    # The slots of a tile are loaded one step ahead and carried, so that the loads of keys and
    # values depend on no load of their own step and the pipeliner can put them stages ahead.
    slot, visible = resolve_selected(
        topk_row, table_row, slots_row, first, end, seq_len, offs_n, BLOCK, TILE, SLOTS, CONTIGUOUS
    )
    for i in tl.range(first, end):
        k = tl.load(
            k_head + slot.to(tl.int64)[:, None] * k_s,
            mask=visible[:, None] & d_ok[None, :],
            other=0.0,
        )
        v = tl.load(
            v_head + slot.to(tl.int64)[:, None] * v_s,
            mask=visible[:, None] & dv_ok[None, :],
            other=0.0,
        )
        seen = visible
        slot, visible = resolve_selected(
            topk_row, table_row, slots_row, i + 1, end, seq_len, offs_n, BLOCK, TILE, SLOTS,
            CONTIGUOUS,
        )  # fmt: skip
        if FP8:
            k = k.to(q_tile.dtype)
            v = v.to(q_tile.dtype)
        scores = tl.dot(q_tile, tl.trans(k)) * (scale * k_scale)
        scores = tl.where(seen[None, :], scores, float("-inf"))
        top, total, acc = softmax_step(scores, v, top, total, acc)

    if SINK > 0 and part == 0:
        logits = sink_logits(q_tile, sink, heads, row_ok, offs_d, d_ok, D, scale, SINK)
        new_top = tl.maximum(top, logits)
        fade = tl.exp2(top - new_top)
        total = total * fade + tl.exp2(logits - new_top)
        acc = acc * fade[:, None]
        top = new_top

    out_tile = out + b.to(tl.int64) * out_b + heads[:, None] * out_h + offs_dv[None, :]
    out_ok = row_ok[:, None] & dv_ok[None, :]
    if PARTS == 1:
        tl.store(out_tile, finish(acc, total, v_scale).to(out.dtype.element_ty), mask=out_ok)
    else:
        at = (pair * PARTS + part) * ROWS + rows
        tl.store(
            part_out + at.to(tl.int64)[:, None] * BLOCK_DV + offs_dv[None, :],
            acc,
            mask=row_ok[:, None],
        )
        tl.store(part_top + at, top)
        tl.store(part_total + at, total)
        # Every thread's stores come before the ticket, and the ticket before any load below.
        tl.debug_barrier()
        ticket = tl.atomic_add(tickets + pair, 1, sem="acq_rel")
        if ticket == PARTS - 1:
            tl.store(tickets + pair, 0)
            merge_parts(
                part_out, part_top, part_total, pair * PARTS, out + b.to(tl.int64) * out_b, out_h,
                heads, row_ok, v_scale, PARTS, ROWS, BLOCK_DV, DV,
            )  # fmt: skip


def config_for(
    pairs: int, selected: int, block: int, contiguous: bool, device: torch.device
) -> DecodeConfig:
    """The cut for a number of (request, KV head) pairs, from shapes alone.

    Parts fill one wave of two programs a multiprocessor, so that none waits for a second wave; a
    part has at least one tile. Over 16 parts, the merge costs more than a shorter part saves.
    Unsplit programs over scattered slots do better with tiles of 128, since each lookup then
    serves a longer step. Figures: bench/kernels/NOTES.md.
    """
    wave = 2 * processors(device)
    parts = power_of_two_below(min(wave // pairs if pairs <= wave else 1, 8 if pairs > 4 else 16))
    if parts == 1 and contiguous:
        return DecodeConfig(1, min(64, block), warps=4, stages=4)
    if parts == 1:
        tile = min(128, block)
        return DecodeConfig(1, tile, warps=8 if tile == 128 else 4, stages=2)
    tile = min(64, block)
    return DecodeConfig(min(parts, power_of_two_below(selected // tile)), tile, warps=4, stages=3)


def block_sparse_decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    req_to_token: torch.Tensor,
    req_ids: torch.Tensor,
    seq_lens: torch.Tensor,
    topk_idx: torch.Tensor,
    *,
    block: int = 128,
    scale: float | None = None,
    sink: torch.Tensor | None = None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    device_slots: torch.Tensor | None = None,
    page_size: int = 1,
    out: torch.Tensor | None = None,
    workspace: Workspace | None = None,
    config: DecodeConfig | None = None,
) -> torch.Tensor:
    """One new token per request attends to the blocks that the indexer selected.

    The launch depends on shapes only, so it can be captured in a CUDA graph. The oracle is
    `reference.attention.block_sparse_decode`; the relative error against it stays under 4e-3 in
    bfloat16 and 1e-3 in float16.

    Args:
        q: [bs, hq, d] bfloat16 or float16.
        k_cache: [slots, hkv, d], v_cache: [slots, hkv, dv], of q's dtype or both one fp8.
        req_to_token: [reqs, ctx] int32, slot of each position.
        req_ids: [bs] int32 or int64, rows of req_to_token.
        seq_lens: [bs] int32 or int64, the new token counted; 0 for a padded row (zeros come out).
        topk_idx: [hkv, bs, k] int32 block ids, none twice; -1 for none, anywhere.
        block: positions in a block, a power of two of at least 16.
        sink: per query head, a logit [hq] or a key without a value [hq, d].
        k_scale, v_scale: what stored keys and values are multiplied by.
        device_slots: [hkv, bs, >= k * block] int32, from `hisparse.swap_in`: the slot of each
            selected token, -1 for none; req_to_token is then not read.
        page_size: if a multiple of 64, slots of a page are contiguous, and one lookup serves many
            keys.

    Returns:
        [bs, hq, dv] of q's dtype.

    Raises:
        ValueError: shapes or dtypes that do not go together.
    """
    fp8 = check_cache(q, k_cache, v_cache)
    bs, hq, d = q.shape
    hkv, dv = k_cache.shape[1], v_cache.shape[2]
    k = topk_idx.shape[2]
    if topk_idx.shape[:2] != (hkv, bs) or topk_idx.stride(2) != 1:
        raise ValueError(f"topk_idx must be [{hkv}, {bs}, k], not {tuple(topk_idx.shape)}")
    if block < 16 or block & (block - 1):
        raise ValueError(f"a block is a power of two of at least 16 positions, not {block}")
    if device_slots is not None and device_slots.shape[2] < k * block:
        raise ValueError(f"device_slots has {device_slots.shape[2]} places for {k * block} tokens")
    if out is None:
        out = torch.empty(bs, hq, dv, dtype=q.dtype, device=q.device)
    if bs == 0:
        return out
    pairs, group = bs * hkv, hq // hkv
    cut = config or config_for(pairs, k * block, block, page_size % 64 == 0, q.device)
    rows, block_dv = max(16, triton.next_power_of_2(group)), triton.next_power_of_2(dv)
    if workspace is None:
        parts = pairs * cut.parts if cut.parts > 1 else 1
        workspace = workspace_for(parts, pairs, rows, block_dv, q.device)
    slots = topk_idx if device_slots is None else device_slots
    tiles = k * block // cut.tile
    _kernel[(pairs * cut.parts,)](
        q, k_cache, v_cache, req_to_token, req_ids, seq_lens, topk_idx, slots,
        q if sink is None else sink, out,
        workspace.out, workspace.top, workspace.total, workspace.tickets,
        q.stride(0), q.stride(1), k_cache.stride(0), k_cache.stride(1), v_cache.stride(0),
        v_cache.stride(1), req_to_token.stride(0), topk_idx.stride(0), topk_idx.stride(1),
        slots.stride(0), slots.stride(1), out.stride(0), out.stride(1),
        (d**-0.5 if scale is None else scale) * LOG2_E, k_scale, v_scale,
        tiles, triton.cdiv(tiles, cut.parts), hkv,
        D=d, DV=dv, BLOCK_D=triton.next_power_of_2(d), BLOCK_DV=block_dv, GROUP=group, ROWS=rows,
        BLOCK=block, TILE=cut.tile, PARTS=cut.parts, SLOTS=device_slots is not None,
        CONTIGUOUS=page_size % cut.tile == 0, SINK=sink_kind(sink, hq, d), FP8=fp8,
        num_warps=cut.warps, num_stages=cut.stages,
    )  # fmt: skip
    return out
