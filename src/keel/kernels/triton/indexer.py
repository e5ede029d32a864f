"""The indexer: score blocks of keys with small index heads, and choose the blocks to attend to."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from keel.kernels.triton.common import FP8, power_of_two_below, processors


@triton.jit
def _score_kernel(
    q, k_cache, table, req_ids, token_req, visible, scores,
    q_n, q_h, k_s, k_h, table_r, scores_h, scores_n, tokens, k_scale, per_part,
    D: tl.constexpr, BLOCK_D: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr,
    QUERIES: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    # A tile of rows is QUERIES tokens of one request times GROUP index heads of one key head.
    tile = tl.program_id(0) // PARTS
    part = tl.program_id(0) % PARTS
    h = tl.program_id(1)
    rows = tl.arange(0, ROWS)
    token = tile * QUERIES + rows // GROUP
    head = h * GROUP + rows % GROUP
    row_ok = (rows < QUERIES * GROUP) & (token < tokens)
    end = tl.load(visible + token, mask=row_ok, other=0)
    last = tl.max(end, 0)
    request = tl.load(token_req + tl.minimum(tile * QUERIES, tokens - 1))
    rid = tl.load(req_ids + request).to(tl.int64)
    offs_n, offs_d = tl.arange(0, BLOCK), tl.arange(0, BLOCK_D)
    d_ok = offs_d < D
    q_tile = tl.load(
        q + token.to(tl.int64)[:, None] * q_n + head[:, None] * q_h + offs_d[None, :],
        mask=row_ok[:, None] & d_ok[None, :],
        other=0.0,
    )
    # Blocks are cut by the length, so that a short sequence is shared out too.
    blocks = tl.cdiv(last, BLOCK).to(tl.int32)
    per_part = tl.minimum(per_part, tl.cdiv(blocks, PARTS))
    first = part * per_part
    table_row = table + rid * table_r
    k_head = k_cache + h * k_h + offs_d[None, :]
    out = scores + head.to(tl.int64) * scores_h + token.to(tl.int64) * scores_n
    position = first * BLOCK + offs_n
    seen = position < last
    slot = tl.load(table_row + position, mask=seen, other=0)
    for block in tl.range(first, tl.minimum(first + per_part, blocks)):
        k = tl.load(
            k_head + slot.to(tl.int64)[:, None] * k_s, mask=seen[:, None] & d_ok[None, :], other=0.0
        )
        here = block * BLOCK + offs_n
        position = here + BLOCK
        seen = position < last
        slot = tl.load(table_row + position, mask=seen, other=0)
        if FP8:
            k = k.to(q_tile.dtype)
        products = tl.dot(q_tile, tl.trans(k)) * k_scale
        products = tl.where(here[None, :] < end[:, None], products, float("-inf"))
        tl.store(out + block, tl.max(products, 1), mask=row_ok & (block * BLOCK < end))


@triton.jit
def _select_kernel(
    scores, visible, out, scores_h, scores_n, out_h, out_n, k, init, local,
    BLOCK: tl.constexpr, CHUNK: tl.constexpr, KEEP: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    # A block becomes one 64-bit key: its score made an ordered integer, over its id, inverted so
    # that the lower id wins among equals. The largest KEEP keys are carried from chunk to chunk.
    token, h = tl.program_id(0), tl.program_id(1)
    end = tl.load(visible + token)
    blocks = tl.cdiv(end, BLOCK).to(tl.int32)
    row = scores + h.to(tl.int64) * scores_h + token.to(tl.int64) * scores_n
    offs = tl.arange(0, CHUNK)
    NONE: tl.constexpr = -(2**63)
    best = tl.full((KEEP,), NONE, tl.int64)
    for chunk in tl.range(0, tl.minimum(tl.cdiv(blocks, CHUNK), CHUNKS)):
        block = chunk * CHUNK + offs
        score = tl.load(row + block, mask=block < blocks, other=0.0)
        always = (block < init) | (block >= blocks - local)
        score = tl.where(always, float("inf"), score)
        score = tl.where(score == 0.0, 0.0, score)  # -0 and 0 are equal
        bits = score.to(tl.int32, bitcast=True)
        order = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)
        key = (order << 32) | (0x7FFFFFFF - block).to(tl.int64)
        key = tl.where(block < blocks, key, NONE)
        both = tl.reshape(tl.join(best, tl.topk(key, KEEP)), (2 * KEEP,))
        best = tl.topk(both, KEEP)
    ids = 0x7FFFFFFF - (best & 0x7FFFFFFF).to(tl.int32)
    rank = tl.arange(0, KEEP)
    ids = tl.where((best == NONE) | (rank >= k), 0x7FFFFFFF, ids)
    ids = tl.sort(ids)
    ids = tl.where(ids == 0x7FFFFFFF, -1, ids)
    tl.store(out + h * out_h + token.to(tl.int64) * out_n + rank, ids, mask=rank < k)


def block_scores(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    req_to_token: torch.Tensor,
    req_ids: torch.Tensor,
    token_req: torch.Tensor,
    visible: torch.Tensor,
    *,
    block: int = 128,
    queries: int = 1,
    k_scale: float = 1.0,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The largest product of each index query with the index keys of each block.

    For decode, one token per request: `queries` 1, `token_req` an arange, `visible` the lengths.
    For a chunk of a prefill: tokens of one request follow one another, padded to a multiple of
    `queries` for each request with rows of `visible` 0; several then share a read of the keys.
    The oracle is `reference.indexer.block_scores`; relative error under 4e-3 in bfloat16.

    Args:
        q: [n, hi, d] index queries, bfloat16 or float16.
        k_cache: [slots, hik, d] of q's dtype or fp8; hik divides hi.
        req_to_token: [reqs, ctx] int32. req_ids: [bs]. token_req: [n] int32, index into req_ids.
        visible: [n] int32, positions before it are seen; 0 for a padded row.
        block: positions in a block, a power of two of at least 16.

    Returns:
        [hi, n, ceil(ctx / block)] float32; a row is written up to the last block that it sees.
    """
    n, heads, d = q.shape
    hik = k_cache.shape[1]
    if heads % hik or block < 16 or block & (block - 1):
        raise ValueError(f"{heads} index heads over {hik} key heads, blocks of {block}")
    if q.stride(2) != 1 or k_cache.stride(2) != 1:
        raise ValueError("the last dimensions of q and k_cache must be contiguous")
    most = triton.cdiv(req_to_token.shape[1], block)
    if out is None:
        out = torch.empty(heads, n, most, dtype=torch.float32, device=q.device)
    if n == 0:
        return out
    group = heads // hik
    tiles = triton.cdiv(n, queries)
    wanted = max(1, 8 * processors(q.device) // (tiles * hik))
    parts = power_of_two_below(min(wanted, most))
    _score_kernel[(tiles * parts, hik)](
        q, k_cache, req_to_token, req_ids, token_req, visible, out,
        q.stride(0), q.stride(1), k_cache.stride(0), k_cache.stride(1), req_to_token.stride(0),
        out.stride(0), out.stride(1), n, k_scale, triton.cdiv(most, parts),
        D=d, BLOCK_D=triton.next_power_of_2(d), GROUP=group,
        ROWS=max(16, triton.next_power_of_2(queries * group)), QUERIES=queries, BLOCK=block,
        PARTS=parts, FP8=k_cache.dtype in FP8, num_warps=4, num_stages=3,
    )  # fmt: skip
    return out


def select_blocks(
    scores: torch.Tensor,
    visible: torch.Tensor,
    *,
    block: int = 128,
    k: int = 16,
    init: int = 0,
    local: int = 1,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The blocks that each token attends to: the first, the last, and the best of the others.

    The oracle is `reference.indexer.select_blocks`, and the result is equal to it on the same
    scores.

    Args:
        scores: [heads, n, blocks] float32, from `block_scores`. visible: [n], as there.
        k: at most so many blocks, at most 256. init, local: the first and last blocks that are
            always in; init + local <= k.

    Returns:
        [heads, n, k] int32, ascending, -1 after the last.
    """
    heads, n, most = scores.shape
    if not 0 < k <= 256 or init + local > k:
        raise ValueError(f"k is 1 to 256 and holds the {init} + {local} blocks always in, not {k}")
    if out is None:
        out = torch.empty(heads, n, k, dtype=torch.int32, device=scores.device)
    if n == 0:
        return out
    keep = max(2, triton.next_power_of_2(k))
    chunk = min(1024, max(keep, triton.next_power_of_2(most)))
    _select_kernel[(n, heads)](
        scores, visible, out, scores.stride(0), scores.stride(1), out.stride(0), out.stride(1),
        k, init, local, BLOCK=block, CHUNK=chunk, KEEP=keep, CHUNKS=triton.cdiv(most, chunk),
        num_warps=4 if chunk > 256 else 1,
    )  # fmt: skip
    return out


def union_of_heads(topk_idx: torch.Tensor, hkv: int) -> torch.Tensor:
    """Join the selections of the index heads that belong to one KV head; torch, graph-safe.

    Args:
        topk_idx: [hi, n, k] int32, hkv divides hi.

    Returns:
        [hkv, n, (hi // hkv) * k] int32, ascending, none twice, -1 after the last.
    """
    heads, n, k = topk_idx.shape
    if heads == hkv:
        return topk_idx
    last = torch.iinfo(torch.int32).max
    joined = topk_idx.view(hkv, heads // hkv, n, k).permute(0, 2, 1, 3).reshape(hkv, n, -1)
    ids = joined.masked_fill(joined < 0, last).sort(-1).values
    twice = torch.zeros_like(ids, dtype=torch.bool)
    twice[..., 1:] = ids[..., 1:] == ids[..., :-1]
    ids = ids.masked_fill(twice, last).sort(-1).values
    return ids.masked_fill(ids == last, -1)


@dataclass(frozen=True)
class SharedSelection:
    """The selection that the layers of a group share, at one address for CUDA graphs.

    The group's first layer publishes, the others consume; a layer that consumes scores nothing.

    Args:
        buffer: [hkv, most tokens, k] int32.
    """

    buffer: torch.Tensor

    @staticmethod
    def allocate(hkv: int, tokens: int, k: int, device: torch.device) -> SharedSelection:
        return SharedSelection(torch.full((hkv, tokens, k), -1, dtype=torch.int32, device=device))

    def publish(self, topk_idx: torch.Tensor) -> torch.Tensor:
        """Keep a selection [hkv, n, k] and return the view that consumers get.

        Raises:
            ValueError: it is no selection of this group's shape.
        """
        hkv, n, k = topk_idx.shape
        if (hkv, k) != (self.buffer.shape[0], self.buffer.shape[2]) or n > self.buffer.shape[1]:
            raise ValueError(
                f"a selection of {tuple(topk_idx.shape)} does not fit {tuple(self.buffer.shape)}"
            )
        return self.buffer[:, :n].copy_(topk_idx)

    def consume(self, n: int) -> torch.Tensor:
        """[hkv, n, k], what was published last."""
        return self.buffer[:, :n]
