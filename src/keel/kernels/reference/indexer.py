"""Oracle of the indexer: scores of blocks of keys, and which blocks a token attends to."""

from __future__ import annotations

import torch


def block_scores(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    req_to_token: torch.Tensor,
    req_ids: torch.Tensor,
    token_req: torch.Tensor,
    visible: torch.Tensor,
    block: int,
) -> torch.Tensor:
    """The largest index score of each block, for each token and index head.

    Args:
        q: [n, hi, d] index queries. k_cache: [slots, hik, d] index keys; hik divides hi.
        token_req: [n] index into req_ids of each token's request.
        visible: [n] positions before it are seen.

    Returns:
        [hi, n, blocks] float64, -inf where a block holds no visible token; blocks is
        ceil(req_to_token.shape[1] / block).
    """
    n, heads, _ = q.shape
    group = heads // k_cache.shape[1]
    blocks = -(-req_to_token.shape[1] // block)
    out = torch.full((heads, n, blocks), -torch.inf, dtype=torch.float64, device=q.device)
    for i in range(n):
        end = int(visible[i])
        slots = req_to_token[int(req_ids[int(token_req[i])]), :end].long()
        for h in range(heads):
            scores = k_cache[slots, h // group].double() @ q[i, h].double()
            for b in range(-(-end // block)):
                out[h, i, b] = scores[b * block : (b + 1) * block].max()
    return out


def select_blocks(
    scores: torch.Tensor, visible: torch.Tensor, block: int, k: int, init: int, local: int
) -> torch.Tensor:
    """The blocks that each token attends to.

    The first `init` blocks and the last `local` blocks that hold visible tokens are always in;
    the others follow by score, the lower id first among equals.

    Args:
        scores: [heads, n, blocks]. visible: [n] positions before it are seen.
        k: at most so many blocks; init + local <= k.

    Returns:
        [heads, n, k] int32, ascending, -1 after the last.
    """
    heads, n, _ = scores.shape
    out = torch.full((heads, n, k), -1, dtype=torch.int32, device=scores.device)
    for h in range(heads):
        for i in range(n):
            count = -(-int(visible[i]) // block)
            always = {b for b in range(count) if b < init or b >= count - local}
            rest = sorted(set(range(count)) - always, key=lambda b: (-float(scores[h, i, b]), b))
            chosen = sorted([*always, *rest[: k - len(always)]])
            out[h, i, : len(chosen)] = torch.tensor(chosen, dtype=torch.int32)
    return out


def union_of_heads(topk_idx: torch.Tensor, hkv: int) -> torch.Tensor:
    """Join the selections of the index heads that belong to one KV head.

    Args:
        topk_idx: [hi, n, k], hkv divides hi.

    Returns:
        [hkv, n, (hi // hkv) * k] int32, ascending, none twice, -1 after the last.
    """
    heads, n, k = topk_idx.shape
    group = heads // hkv
    out = torch.full((hkv, n, group * k), -1, dtype=torch.int32, device=topk_idx.device)
    for h in range(hkv):
        for i in range(n):
            found = set(topk_idx[h * group : (h + 1) * group, i].flatten().tolist()) - {-1}
            out[h, i, : len(found)] = torch.tensor(sorted(found), dtype=torch.int32)
    return out
