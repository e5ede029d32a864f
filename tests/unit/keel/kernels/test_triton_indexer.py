"""Scores of blocks and their selection, against the oracle."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from keel.kernels.reference import indexer as oracle
from support.kernels import DEVICE, paged_cache, queries


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_scores(data: st.DataObject) -> None:
    from keel.kernels.triton.indexer import block_scores

    lengths = data.draw(st.lists(st.integers(0, 150), min_size=1, max_size=4))
    hik = data.draw(st.sampled_from([1, 2]))
    heads, d = hik * data.draw(st.sampled_from([1, 4])), data.draw(st.sampled_from([16, 24]))
    cache = paged_cache(lengths, hik, d, torch.float16, seed=data.draw(st.integers(0, 9)))
    q = queries(len(lengths), heads, d, torch.float16)
    where = {
        "req_to_token": cache["req_to_token"],
        "req_ids": cache["req_ids"],
        "token_req": torch.arange(len(lengths), dtype=torch.int32, device=DEVICE),
        "visible": torch.tensor(lengths, dtype=torch.int32, device=DEVICE),
    }
    expected = oracle.block_scores(q, cache["k_cache"], **where, block=16)
    out = torch.full(expected.shape, -torch.inf, device=DEVICE)
    got = block_scores(q, cache["k_cache"], **where, block=16, out=out)
    torch.testing.assert_close(got.double(), expected, rtol=2e-3, atol=2e-2)


def test_a_chunk_of_a_prefill_shares_its_reads() -> None:
    from keel.kernels.triton.indexer import block_scores

    cache = paged_cache([70, 40], 1, 16, torch.float16)
    visible = torch.tensor([61, 62, 63, 64, 65, 0, 0, 0, 39, 40, 0, 0], dtype=torch.int32)
    token_req = torch.tensor([0] * 8 + [1] * 4, dtype=torch.int32)
    q = queries(12, 4, 16, torch.float16)
    where = {
        "req_to_token": cache["req_to_token"],
        "req_ids": cache["req_ids"],
        "token_req": token_req.to(DEVICE),
        "visible": visible.to(DEVICE),
    }
    expected = oracle.block_scores(q, cache["k_cache"], **where, block=16)
    out = torch.full(expected.shape, -torch.inf, device=DEVICE)
    got = block_scores(q, cache["k_cache"], **where, block=16, queries=4, out=out)
    torch.testing.assert_close(got.double(), expected, rtol=2e-3, atol=2e-2)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_selection(data: st.DataObject) -> None:
    from keel.kernels.triton.indexer import select_blocks

    init, local = data.draw(st.integers(0, 2)), data.draw(st.integers(0, 2))
    k = max(init + local, data.draw(st.integers(1, 9)))
    visible = torch.tensor(data.draw(st.lists(st.integers(0, 520), min_size=1, max_size=3))).int()
    gen = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    # Coarse scores, of both signs, so that many are equal.
    scores = (torch.randn(2, len(visible), 33, generator=gen) * 2).round()
    args = {"block": 16, "k": k, "init": init, "local": local}
    got = select_blocks(scores.to(DEVICE), visible.to(DEVICE), **args)
    assert torch.equal(got.cpu(), oracle.select_blocks(scores, visible, **args))


def test_selection_over_several_chunks() -> None:
    from keel.kernels.triton.indexer import select_blocks

    scores = torch.randn(1, 2, 2500)
    visible = torch.tensor([2500 * 16 - 3, 1030 * 16], dtype=torch.int32)
    args = {"block": 16, "k": 16, "init": 1, "local": 2}
    got = select_blocks(scores.to(DEVICE), visible.to(DEVICE), **args)
    assert torch.equal(got.cpu(), oracle.select_blocks(scores, visible, **args))


def test_union_of_heads() -> None:
    from keel.kernels.triton.indexer import union_of_heads

    topk = torch.randint(-1, 9, (6, 5, 4), dtype=torch.int32)
    assert torch.equal(union_of_heads(topk, 2), oracle.union_of_heads(topk, 2))


def test_a_group_of_layers_shares_one_selection() -> None:
    from keel.kernels.triton.indexer import SharedSelection

    shared = SharedSelection.allocate(2, 8, 4, torch.device("cpu"))
    chosen = torch.randint(0, 9, (2, 3, 4), dtype=torch.int32)
    assert shared.publish(chosen).data_ptr() == shared.buffer.data_ptr()
    assert torch.equal(shared.consume(3), chosen)
    with pytest.raises(ValueError, match="does not fit"):
        shared.publish(chosen[:, :, :3])
