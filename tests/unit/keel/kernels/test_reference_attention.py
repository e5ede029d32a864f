"""The attention oracles, against torch and against transformers' MiniMax-M3."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from keel.kernels.reference import attention, indexer


def paged(lengths: list[int], hkv: int, d: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """A cache with each request's tokens scattered over it, and rows in reverse order."""
    gen = torch.Generator().manual_seed(seed)
    ctx, reqs = max([*lengths, 1]), len(lengths)
    order = torch.randperm(reqs * ctx + 1, generator=gen)[: reqs * ctx]
    return {
        "k_cache": torch.randn(reqs * ctx + 1, hkv, d, generator=gen, dtype=torch.float64),
        "v_cache": torch.randn(reqs * ctx + 1, hkv, d, generator=gen, dtype=torch.float64),
        "req_to_token": order.view(reqs, ctx).int(),
        "req_ids": torch.arange(reqs).flip(0),
    }


@pytest.mark.parametrize(("hq", "hkv"), [(4, 4), (8, 2), (3, 1)])
def test_attend_is_softmax_attention(hq: int, hkv: int) -> None:
    q = torch.randn(hq, 16, dtype=torch.float64)
    k, v = torch.randn(2, 9, hkv, 16, dtype=torch.float64)
    expected = F.scaled_dot_product_attention(
        q[:, None], k.transpose(0, 1), v.transpose(0, 1), scale=0.3, enable_gqa=True
    )[:, 0]
    torch.testing.assert_close(attention.attend(q, k, v, 0.3), expected)


def test_a_sink_is_a_token_without_a_value() -> None:
    q, sink_key = torch.randn(2, 1, 8, dtype=torch.float64)
    k, v = torch.randn(2, 5, 1, 8, dtype=torch.float64)
    logits = attention.sink_logits_of(q, sink_key, 0.5)
    assert logits is not None
    with_token = attention.attend(
        q,
        torch.cat([k, sink_key[:, None]]),
        torch.cat([v, torch.zeros(1, 1, 8, dtype=torch.float64)]),
        0.5,
    )
    torch.testing.assert_close(attention.attend(q, k, v, 0.5, logits), with_token)
    torch.testing.assert_close(attention.sink_logits_of(q, logits, 0.5), logits)


def test_nothing_to_see_gives_zeros() -> None:
    empty = torch.zeros(0, 1, 8, dtype=torch.float64)
    assert attention.attend(torch.ones(2, 8).double(), empty, empty, 1.0).eq(0).all()


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    window=st.sampled_from([0, 1, 7]),
)
def test_decode_is_the_last_row_of_masked_attention(lengths: list[int], window: int) -> None:
    cache = paged(lengths, 2, 8)
    q = torch.randn(len(lengths), 4, 8, dtype=torch.float64)
    got = attention.paged_decode(
        q, **cache, seq_lens=torch.tensor(lengths), scale=0.3, window=window
    )
    for b, length in enumerate(lengths):
        slots = cache["req_to_token"][cache["req_ids"][b], :length].long()
        slots = slots[-window:] if window else slots
        if length == 0:
            assert got[b].eq(0).all()
            continue
        expected = F.scaled_dot_product_attention(
            q[b][:, None],
            cache["k_cache"][slots].transpose(0, 1),
            cache["v_cache"][slots].transpose(0, 1),
            scale=0.3,
            enable_gqa=True,
        )[:, 0]
        torch.testing.assert_close(got[b], expected)


@settings(max_examples=15, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=3),
    block=st.sampled_from([4, 8]),
    seed=st.integers(0, 99),
)
def test_all_blocks_selected_is_dense_attention(lengths: list[int], block: int, seed: int) -> None:
    cache = paged(lengths, 2, 8, seed)
    gen = torch.Generator().manual_seed(seed)
    q = torch.randn(len(lengths), 4, 8, dtype=torch.float64, generator=gen)
    blocks = -(-max(lengths) // block)
    # In any order, with holes, and with blocks past the end.
    topk = torch.full((2, len(lengths), blocks + 3), -1, dtype=torch.int32)
    for h in range(2):
        for b in range(len(lengths)):
            places = torch.randperm(blocks + 3, generator=gen)[: blocks + 1]
            topk[h, b, places] = torch.arange(blocks + 1, dtype=torch.int32)
    seq_lens = torch.tensor(lengths)
    sparse = attention.block_sparse_decode(q, **cache, seq_lens=seq_lens, topk_idx=topk,
                                           block=block, scale=0.3)  # fmt: skip
    dense = attention.paged_decode(q, **cache, seq_lens=seq_lens, scale=0.3)
    torch.testing.assert_close(sparse, dense)


def test_decode_is_prefill_of_one_token() -> None:
    lengths = torch.tensor([13, 5, 32])
    cache = paged(lengths.tolist(), 1, 8)
    q = torch.randn(3, 2, 8, dtype=torch.float64)
    topk = torch.tensor([[[0, 1, -1], [1, 0, -1], [7, -1, 2]]], dtype=torch.int32)
    decode = attention.block_sparse_decode(q, **cache, seq_lens=lengths, topk_idx=topk, block=4,
                                           scale=0.4)  # fmt: skip
    prefill = attention.block_sparse_prefill(
        q, **cache, cu_seqlens=torch.arange(4), prefix_lens=lengths - 1, topk_idx=topk, block=4,
        block_q=16, scale=0.4,
    )  # fmt: skip
    torch.testing.assert_close(decode, prefill)


def test_device_slots_replace_the_table() -> None:
    cache = paged([12], 1, 8)
    q = torch.randn(1, 2, 8, dtype=torch.float64)
    topk = torch.tensor([[[2, 0, -1]]], dtype=torch.int32)
    row = cache["req_to_token"][0]
    slots = torch.cat([row[8:12], row[0:4], torch.full((4,), -1)])[None, None]
    args = {"q": q, **cache, "seq_lens": torch.tensor([12]), "topk_idx": topk, "block": 4}
    expected = attention.block_sparse_decode(**args, scale=1.0)
    args["req_to_token"] = torch.full_like(cache["req_to_token"], -7)
    got = attention.block_sparse_decode(**args, scale=1.0, device_slots=slots)
    torch.testing.assert_close(got, expected)


def test_selection_and_attention_are_those_of_minimax_m3() -> None:
    """transformers' eager path: its indexer's choice, its mask, its attention."""
    modeling = pytest.importorskip("transformers.models.minimax_m3_vl.modeling_minimax_m3_vl")
    config_of = pytest.importorskip(
        "transformers.models.minimax_m3_vl.configuration_minimax_m3_vl"
    ).MiniMaxM3VLTextConfig
    tokens, block, k, heads, hkv, d = 50, 8, 3, 4, 2, 16
    config = config_of(
        hidden_size=32, num_attention_heads=heads, num_key_value_heads=hkv, head_dim=d,
        num_hidden_layers=1, index_n_heads=hkv, index_head_dim=d, index_block_size=block,
        index_topk_blocks=k, index_local_blocks=1, layer_types=["minimax_m3_sparse"],
    )  # fmt: skip
    theirs = modeling.MiniMaxM3VLIndexer(config, 0).eval()
    hidden = torch.randn(1, tokens, 32)
    position_ids = torch.arange(tokens)[None]
    no_rotation = torch.ones(1, tokens, d), torch.zeros(1, tokens, d)
    with torch.no_grad():
        chosen = theirs(hidden, no_rotation, None, position_ids)
        index_q = theirs.q_norm(theirs.q_proj(hidden).view(tokens, hkv, d))
        index_k = theirs.k_norm(theirs.k_proj(hidden).view(tokens, 1, d))
    visible = torch.arange(tokens) + 1
    table = torch.arange(tokens)[None]
    scores = indexer.block_scores(
        index_q, index_k, table, torch.zeros(1), torch.zeros(tokens), visible, block
    )
    ours = indexer.select_blocks(scores, visible, block, k, init=0, local=1)
    torch.testing.assert_close(
        ours.sort(-1).values, chosen[0].int().sort(-1).values, rtol=0, atol=0
    )

    q = torch.randn(tokens, heads, d, dtype=torch.float64)
    keys, values = torch.randn(2, tokens, hkv, d, dtype=torch.float64)
    got = attention.block_sparse_prefill(
        q, keys, values, table, torch.zeros(1), torch.tensor([0, tokens]), torch.zeros(1), ours,
        block, block_q=1, scale=0.25,
    )  # fmt: skip
    mask = theirs.build_block_mask(
        chosen, None, tokens, torch.float64, torch.device("cpu"), position_ids
    )
    expected = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        keys.transpose(0, 1)[None],
        values.transpose(0, 1)[None],
        attn_mask=mask,
        scale=0.25,
        enable_gqa=True,
    )[0].transpose(0, 1)
    torch.testing.assert_close(got, expected)
