"""The swap-in's oracle: what must hold after any sequence of selections."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from keel.kernels.reference.hisparse import Residency, copy_rows, swap_in


def fresh(reqs: int, hot: int, ctx: int, seed: int) -> tuple[Residency, torch.Tensor, torch.Tensor]:
    """A state in which slot i of each request holds position i, with host and device pools."""
    gen = torch.Generator().manual_seed(seed)
    width = hot + 2
    state = Residency(
        tokens=torch.arange(width).repeat(reqs, 1).int(),
        lru=torch.arange(hot).repeat(reqs, 1).to(torch.int16),
        device_locs=torch.randperm(reqs * width, generator=gen).view(reqs, width).int(),
        host_locs=torch.randperm(reqs * ctx, generator=gen).view(reqs, ctx),
    )
    host = torch.randn(reqs * ctx, 4, generator=gen)
    device = torch.full((reqs * width, 4), torch.nan)
    for r in range(reqs):
        device[state.device_locs[r, :hot].long()] = host[state.host_locs[r, :hot]]
    return state, host, device


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_every_selected_token_is_where_it_is_said_to_be(data: st.DataObject) -> None:
    hot, ctx, reqs = 12, 60, 2
    block = data.draw(st.sampled_from([0, 4]))
    width = 3 if block else 10
    state, host, device = fresh(reqs, hot, ctx, data.draw(st.integers(0, 9)))
    length = data.draw(st.integers(1, ctx - 6))
    for _ in range(4):
        seq_lens = torch.tensor([length, max(1, length - 5)])
        top = 60 // block if block else 60
        rows = [
            data.draw(st.lists(st.integers(-1, top), min_size=width, max_size=width))
            for _ in range(reqs)
        ]
        if block:  # An indexer gives no block twice.
            rows = [list(dict.fromkeys(r)) + [-1] * (width - len(dict.fromkeys(r))) for r in rows]
        req_ids = torch.tensor([1, 0])
        for b in range(reqs):  # The engine writes the newest token itself.
            rid, newest = int(req_ids[b]), int(seq_lens[b]) - 1
            place = hot if seq_lens[b] > hot else newest
            device[state.device_locs[rid, place]] = host[state.host_locs[rid, newest]]
        before_lru, before_tokens = state.lru.clone(), state.tokens.clone()
        result = swap_in(torch.tensor(rows).int(), state, req_ids, seq_lens, reqs, block)
        copy_rows(result.misses, host, device)
        for b in range(reqs):
            rid, end = int(req_ids[b]), int(seq_lens[b])
            flat = [
                (p * block + o if p >= 0 else -1) if block else p
                for p in rows[b]
                for o in range(block or 1)
            ]
            assert sorted(state.lru[rid].tolist()) == list(range(hot))
            wanted = {p for p in flat if 0 <= p < end}
            if end <= hot:
                assert not result.misses[b]
                assert torch.equal(state.lru[rid], before_lru[rid])
            else:
                held = set(before_tokens[rid, :hot].tolist())
                assert len(result.misses[b]) == len(wanted - held - {end - 1})
                taken = [s for s in before_lru[rid].tolist()
                         if int(before_tokens[rid, s]) not in wanted - {end - 1}]  # fmt: skip
                assert [d for _, d in result.misses[b]] == [
                    int(state.device_locs[rid, s]) for s in taken[: len(result.misses[b])]
                ]
            for i, p in enumerate(flat):
                if not 0 <= p < end:
                    assert result.locs[b, i] == -1
                else:
                    row = device[result.locs[b, i]]
                    assert torch.equal(row, host[state.host_locs[rid, p]])
        length = min(length + 1, ctx)


def test_recency_afterwards() -> None:
    state, _, _ = fresh(1, 6, 20, 0)
    swap_in(torch.tensor([[4, 15, 1, 15, 12]]).int(), state, torch.zeros(1), torch.tensor([18]), 1)
    # Hits 1 and 4 keep their slots; 15 and 12 take slots 0 and 2; 3 and 5 are stale.
    assert state.lru[0].tolist() == [3, 5, 0, 2, 1, 4]
    assert state.tokens[0, :6].tolist() == [15, 1, 12, 3, 4, 5]


def test_padded_rows_change_nothing() -> None:
    state, _, _ = fresh(2, 6, 20, 0)
    before = state.tokens.clone()
    result = swap_in(
        torch.tensor([[15], [15]]).int(), state, torch.tensor([0, 1]), torch.tensor([18, 18]), 1
    )
    assert result.locs[1].tolist() == [-1]
    assert not result.misses[1]
    assert torch.equal(state.tokens[1], before[1])


def test_the_newest_token_is_never_a_miss_nor_evicted() -> None:
    state, _, _ = fresh(1, 4, 20, 0)
    result = swap_in(
        torch.tensor([[9, 8, 7, 6, 5]]).int(), state, torch.zeros(1), torch.tensor([10]), 1
    )
    assert result.locs[0, 0] == state.device_locs[0, 4]
    assert len(result.misses[0]) == 4
    assert 9 not in state.tokens[0, :4].tolist()
