"""The indexer's oracle."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from keel.kernels.reference import indexer


def test_a_block_scores_as_its_best_visible_key() -> None:
    q = torch.randn(2, 2, 4)
    keys = torch.randn(10, 1, 4)
    table = torch.randperm(10)[None]
    got = indexer.block_scores(
        q, keys, table, torch.zeros(1), torch.zeros(2), torch.tensor([10, 5]), 4
    )
    raw = torch.einsum("nhd,sd->hns", q.double(), keys[table[0], 0].double())
    torch.testing.assert_close(got[:, 0, 2], raw[:, 0, 8:10].amax(-1))
    torch.testing.assert_close(got[:, 1, 1], raw[:, 1, 4])
    assert got[:, 1, 2].eq(-torch.inf).all()


@given(
    visible=st.integers(0, 100),
    k=st.integers(1, 8),
    init=st.integers(0, 2),
    local=st.integers(0, 2),
    seed=st.integers(0, 99),
)
def test_selection(visible: int, k: int, init: int, local: int, seed: int) -> None:
    k = max(k, init + local, 1)
    scores = torch.randn(1, 1, 13, generator=torch.Generator().manual_seed(seed)).double()
    got = indexer.select_blocks(scores, torch.tensor([visible]), 8, k, init, local)[0, 0].tolist()
    count = -(-visible // 8)
    chosen = [b for b in got if b >= 0]
    assert got == sorted(chosen) + [-1] * (k - len(chosen))
    assert len(set(chosen)) == len(chosen) == min(k, count)
    always = {b for b in range(count) if b < init or b >= count - local}
    assert always <= set(chosen)
    free = [float(scores[0, 0, b]) for b in chosen if b not in always]
    left = [float(scores[0, 0, b]) for b in range(count) if b not in chosen]
    assert not free or not left or min(free) >= max(left)


def test_equal_scores_prefer_the_lower_block() -> None:
    got = indexer.select_blocks(torch.zeros(1, 1, 6), torch.tensor([48]), 8, 3, 0, 1)
    assert got[0, 0].tolist() == [0, 1, 5]


def test_union_of_heads_has_no_block_twice() -> None:
    topk = torch.tensor([[[0, 3, -1]], [[3, 5, 7]], [[1, -1, -1]], [[1, 2, -1]]]).int()
    got = indexer.union_of_heads(topk, 2)
    assert got[:, 0].tolist() == [[0, 3, 5, 7, -1, -1], [1, 2, -1, -1, -1, -1]]
