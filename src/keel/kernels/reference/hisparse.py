"""Oracle of the HiSparse swap-in: which slots hold the selected tokens, and what must be copied."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Residency:
    """What the small device buffers of all requests hold, changed in place by a swap-in.

    A request's buffer has `hot` slots under LRU replacement and, after them, slot number `hot`
    for its newest token.

    Args:
        tokens: [reqs, >= hot] int32, position of the token in each slot, -1 for none.
        lru: [reqs, hot] int16, slots by recency, the least recently used first.
        device_locs: [reqs, >= hot + 1] int32, where each slot lies in the device pool.
        host_locs: [reqs, ctx] int64, where each position lies in the host pool.
    """

    tokens: torch.Tensor
    lru: torch.Tensor
    device_locs: torch.Tensor
    host_locs: torch.Tensor

    @property
    def hot(self) -> int:
        return self.lru.shape[1]


@dataclass(frozen=True)
class SwapIn:
    """Result of a swap-in.

    Args:
        locs: [bs, selected] int32, place in the device pool of each selected token, -1 for none.
        misses: for each request, (place in the host pool, place in the device pool) in the order
            of the selection.
    """

    locs: torch.Tensor
    misses: list[list[tuple[int, int]]]


def selected_positions(selection: list[int], block: int) -> list[int]:
    """Positions of a selection of tokens (block 0) or of blocks; -1 for none."""
    if block == 0:
        return selection
    return [b * block + o if b >= 0 else -1 for b in selection for o in range(block)]


def swap_in(
    selection: torch.Tensor,
    state: Residency,
    req_ids: torch.Tensor,
    seq_lens: torch.Tensor,
    num_real: int,
    block: int = 0,
) -> SwapIn:
    """Make the selected tokens resident.

    - -1 and positions outside [0, seq_len) are no request: their place is -1.
    - A sequence of at most `hot` tokens is resident in order: slot i holds position i.
    - The newest token, position seq_len - 1, is in slot `hot`, always a hit.
    - A hit keeps its slot. Misses, in the order of their first appearance in the selection, take
      the least recently used slots that hold no selected token.
    - Recency afterwards, oldest first: the slots neither hit nor taken, in their old order; the
      slots taken, in the order of taking; the hits, in their old order.
    - Rows from `num_real` on give -1 and change nothing.

    Args:
        selection: [bs, k] int32, positions (block 0) or ids of blocks of `block` positions.
        state: changed in place.
    """
    bs, k = selection.shape
    locs = torch.full((bs, k * max(1, block)), -1, dtype=torch.int32)
    plans: list[list[tuple[int, int]]] = [[] for _ in range(bs)]
    hot = state.hot
    for b in range(min(bs, num_real)):
        rid, length = int(req_ids[b]), int(seq_lens[b])
        where = state.device_locs[rid]
        wanted = [
            p if 0 <= p < length else -1 for p in selected_positions(selection[b].tolist(), block)
        ]
        if length <= hot:
            slot_of = {p: p for p in wanted if p >= 0}
        else:
            newest = length - 1
            needed = list(dict.fromkeys(p for p in wanted if p >= 0 and p != newest))
            order = state.lru[rid].tolist()
            held = {int(state.tokens[rid, s]): s for s in order if int(state.tokens[rid, s]) >= 0}
            slot_of = {p: held[p] for p in needed if p in held}
            hits = set(slot_of.values())
            free = [s for s in order if s not in hits]
            missed = [p for p in needed if p not in slot_of]
            taken = free[: len(missed)]
            for p, s in zip(missed, taken, strict=True):
                slot_of[p] = s
                state.tokens[rid, s] = p
                plans[b].append((int(state.host_locs[rid, p]), int(where[s])))
            after = [*free[len(missed) :], *taken, *(s for s in order if s in hits)]
            state.lru[rid] = torch.tensor(after, dtype=state.lru.dtype)
            slot_of[newest] = hot
        for i, p in enumerate(wanted):
            if p >= 0:
                locs[b, i] = where[slot_of[p]]
    return SwapIn(locs, plans)


def copy_rows(
    misses: list[list[tuple[int, int]]], host: torch.Tensor, device: torch.Tensor
) -> None:
    """Carry out a plan of misses: `host` [host places, ...] to `device` [device places, ...]."""
    for plan in misses:
        for source, target in plan:
            device[target] = host[source]
