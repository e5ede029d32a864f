"""Oracles of attention over a paged cache: dense and block-sparse, decode and prefill."""

from __future__ import annotations

import torch


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    sink_logits: torch.Tensor | None = None,
) -> torch.Tensor:
    """Softmax attention of one token's heads over the tokens that it may see.

    A sink takes part in the softmax's sum and brings no value. No token to see gives zeros.

    Args:
        q: [hq, d] float64. k: [t, hkv, d] float64. v: [t, hkv, dv] float64; hkv divides hq, and
            query head i reads KV head i // (hq // hkv).
        sink_logits: [hq] float64, on the scale of the scaled scores.

    Returns:
        [hq, dv] float64.
    """
    group = q.shape[0] // k.shape[1]
    out = torch.zeros(q.shape[0], v.shape[2], dtype=torch.float64, device=q.device)
    if k.shape[0] == 0:
        return out
    for head in range(q.shape[0]):
        kv = head // group
        logits = (k[:, kv] @ q[head]) * scale
        top = logits.max()
        if sink_logits is not None:
            top = torch.maximum(top, sink_logits[head])
        weights = torch.exp(logits - top)
        total = weights.sum()
        if sink_logits is not None:
            total = total + torch.exp(sink_logits[head] - top)
        out[head] = (weights / total) @ v[:, kv]
    return out


def sink_logits_of(q: torch.Tensor, sink: torch.Tensor | None, scale: float) -> torch.Tensor | None:
    """Logits of a sink: logits [hq] as they are, or the products of `q` with keys [hq, d]."""
    if sink is None:
        return None
    if sink.ndim == 1:
        return sink.double()
    return (q.double() * sink.double()).sum(-1) * scale


def block_positions(blocks: torch.Tensor, block: int, end: int) -> list[tuple[int, int]]:
    """(index in the flattened selection, position) of each selected token before `end`.

    Args:
        blocks: [k] block ids, -1 for none, in any order, none twice.
        end: positions at or past it are no part of the selection.
    """
    found = []
    for rank, b in enumerate(blocks.tolist()):
        if b < 0:
            continue
        for offset in range(block):
            if b * block + offset < end:
                found.append((rank * block + offset, b * block + offset))
    return found


def block_sparse_decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    req_to_token: torch.Tensor,
    req_ids: torch.Tensor,
    seq_lens: torch.Tensor,
    topk_idx: torch.Tensor,
    block: int,
    scale: float,
    sink: torch.Tensor | None = None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    device_slots: torch.Tensor | None = None,
) -> torch.Tensor:
    """One new token per request attends to its selected blocks.

    Args:
        q: [bs, hq, d]. k_cache: [slots, hkv, d]. v_cache: [slots, hkv, dv].
        req_to_token: [reqs, ctx] slot of each position. req_ids: [bs] row of req_to_token.
        seq_lens: [bs], the new token counted; 0 for a padded row, whose output is zeros.
        topk_idx: [hkv, bs, k] block ids, -1 for none.
        sink: logits [hq] or keys [hq, d].
        device_slots: [hkv, bs, k * block] slots to read instead of req_to_token's, -1 for none.

    Returns:
        [bs, hq, dv] float64.
    """
    bs, hq, _ = q.shape
    hkv = k_cache.shape[1]
    group = hq // hkv
    out = torch.zeros(bs, hq, v_cache.shape[2], dtype=torch.float64, device=q.device)
    for b in range(bs):
        sinks = sink_logits_of(q[b], sink, scale)
        for h in range(hkv):
            chosen = block_positions(topk_idx[h, b], block, int(seq_lens[b]))
            slots = []
            for rank, position in chosen:
                if device_slots is None:
                    slots.append(int(req_to_token[int(req_ids[b]), position]))
                elif int(device_slots[h, b, rank]) >= 0:
                    slots.append(int(device_slots[h, b, rank]))
            heads = slice(h * group, (h + 1) * group)
            out[b, heads] = attend(
                q[b, heads].double(),
                k_cache[slots, h : h + 1].double() * k_scale,
                v_cache[slots, h : h + 1].double() * v_scale,
                scale,
                None if sinks is None else sinks[heads],
            )
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
    block: int,
    block_q: int,
    scale: float,
    sink: torch.Tensor | None = None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    slot_map: torch.Tensor | None = None,
) -> torch.Tensor:
    """New tokens of several requests attend, causally, to the blocks that their query block chose.

    Query blocks are counted from each request's first new token; request r has
    ceil(new tokens / block_q) of them, and they follow one another in `topk_idx` without gaps.

    Args:
        q: [n, hq, d], requests one after another. cu_seqlens: [bs + 1]. prefix_lens: [bs], tokens
            already in the cache. The new tokens' keys and values are in the cache too.
        topk_idx: [hkv, query blocks, k], -1 for none.
        slot_map: [logical slots] device slot of each of req_to_token's slots.

    Returns:
        [n, hq, dv] float64.
    """
    hq = q.shape[1]
    hkv = k_cache.shape[1]
    group = hq // hkv
    out = torch.zeros(q.shape[0], hq, v_cache.shape[2], dtype=torch.float64, device=q.device)
    first_block = 0
    for r in range(len(prefix_lens)):
        start, end = int(cu_seqlens[r]), int(cu_seqlens[r + 1])
        for token in range(start, end):
            query_block = first_block + (token - start) // block_q
            position = int(prefix_lens[r]) + token - start
            sinks = sink_logits_of(q[token], sink, scale)
            for h in range(hkv):
                chosen = block_positions(topk_idx[h, query_block], block, position + 1)
                slots = req_to_token[int(req_ids[r]), [p for _, p in chosen]].long()
                if slot_map is not None:
                    slots = slot_map[slots].long()
                heads = slice(h * group, (h + 1) * group)
                out[token, heads] = attend(
                    q[token, heads].double(),
                    k_cache[slots, h : h + 1].double() * k_scale,
                    v_cache[slots, h : h + 1].double() * v_scale,
                    scale,
                    None if sinks is None else sinks[heads],
                )
        first_block += -(-(end - start) // block_q)
    return out


def paged_decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    req_to_token: torch.Tensor,
    req_ids: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    window: int = 0,
    sink: torch.Tensor | None = None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> torch.Tensor:
    """One new token per request attends to all of its request's tokens.

    Args:
        window: the newest so many tokens (the new one counted) are seen; 0 for all.
        Others as in `block_sparse_decode`.

    Returns:
        [bs, hq, dv] float64.
    """
    out = torch.zeros(*q.shape[:2], v_cache.shape[2], dtype=torch.float64, device=q.device)
    real = torch.nonzero(seq_lens > 0).flatten()
    out[real] = paged_prefill(
        q[real],
        k_cache,
        v_cache,
        req_to_token,
        req_ids[real],
        torch.arange(len(real) + 1),
        seq_lens[real] - 1,
        scale,
        window,
        sink,
        k_scale,
        v_scale,
    )
    return out


def paged_prefill(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    req_to_token: torch.Tensor,
    req_ids: torch.Tensor,
    cu_seqlens: torch.Tensor,
    prefix_lens: torch.Tensor,
    scale: float,
    window: int = 0,
    sink: torch.Tensor | None = None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> torch.Tensor:
    """New tokens of several requests attend, causally, to all of their request's tokens.

    Args as in `block_sparse_prefill` and `paged_decode`.

    Returns:
        [n, hq, dv] float64.
    """
    out = torch.zeros(
        q.shape[0], q.shape[1], v_cache.shape[2], dtype=torch.float64, device=q.device
    )
    for r in range(len(prefix_lens)):
        start, end = int(cu_seqlens[r]), int(cu_seqlens[r + 1])
        total = int(prefix_lens[r]) + end - start
        slots = req_to_token[int(req_ids[r]), :total].long()
        k, v = k_cache[slots].double() * k_scale, v_cache[slots].double() * v_scale
        for token in range(start, end):
            last = int(prefix_lens[r]) + token - start + 1
            first = max(0, last - window) if window else 0
            out[token] = attend(
                q[token].double(),
                k[first:last],
                v[first:last],
                scale,
                sink_logits_of(q[token], sink, scale),
            )
    return out
