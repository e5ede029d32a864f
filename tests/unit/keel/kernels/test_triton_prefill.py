"""Dense and block-sparse prefill against their oracles."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from keel.kernels.reference import attention
from support.kernels import DEVICE, paged_cache, queries, relative_error, selection

HALF = torch.float16


def inputs(
    new: list[int], prefix: list[int], hq: int = 4, hkv: int = 2, d: int = 16, **layout: Any
) -> dict[str, Any]:
    totals = [n + p for n, p in zip(new, prefix, strict=True)]
    return {
        "q": queries(sum(new), hq, d, HALF),
        **paged_cache(totals, hkv, d, HALF, **layout),
        "cu_seqlens": torch.tensor([0, *new], dtype=torch.int32, device=DEVICE).cumsum(
            0, dtype=torch.int32
        ),
        "prefix_lens": torch.tensor(prefix, dtype=torch.int32, device=DEVICE),
        "scale": d**-0.5,
    }


def dense(args: dict[str, Any]) -> None:
    from keel.kernels.triton.prefill import paged_prefill

    shape = (*args["q"].shape[:2], args["v_cache"].shape[2])
    out = torch.full(shape, torch.nan, dtype=HALF, device=DEVICE)
    longest = int(args["cu_seqlens"].diff().max())
    got = paged_prefill(**args, max_q_len=longest, out=out)
    assert relative_error(got, attention.paged_prefill(**args)) < 1e-3


def sparse(args: dict[str, Any], k: int = 3, block: int = 16, block_q: int = 4) -> None:
    from keel.kernels.triton.prefill import block_sparse_prefill

    ends = []
    for n, p in zip(args["cu_seqlens"].diff().tolist(), args["prefix_lens"].tolist(), strict=True):
        ends += [p + min(n, start + block_q) for start in range(0, n, block_q)]
    args["topk_idx"] = selection(ends, args["k_cache"].shape[1], k, block, wild=True)
    args.update(block=block, block_q=block_q)
    out = torch.full_like(args["q"], torch.nan)
    longest = int(args["cu_seqlens"].diff().max())
    got = block_sparse_prefill(**args, max_q_len=longest + 3, out=out)
    assert relative_error(got, attention.block_sparse_prefill(**args)) < 1e-3


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_any_lengths(data: st.DataObject) -> None:
    requests = data.draw(
        st.lists(st.tuples(st.integers(1, 30), st.integers(0, 60)), min_size=1, max_size=3)
    )
    hkv = data.draw(st.sampled_from([1, 2]))
    args = inputs(
        [n for n, _ in requests],
        [p for _, p in requests],
        hq=hkv * data.draw(st.sampled_from([1, 3, 4])),
        hkv=hkv,
        d=data.draw(st.sampled_from([16, 24])),
    )
    if data.draw(st.booleans()):
        dense(args)
    else:
        sparse(args, block_q=data.draw(st.sampled_from([1, 8])))


def test_window() -> None:
    dense({**inputs([20, 5], [50, 0]), "window": 9})


@pytest.mark.parametrize("kind", ["logits", "keys"])
def test_sinks(kind: str) -> None:
    sink = torch.randn(4 if kind == "logits" else (4, 24), device=DEVICE)
    dense({**inputs([9, 4], [20, 0], d=24), "sink": sink})
    sparse({**inputs([9, 4], [20, 0], d=24), "sink": sink})


def test_latent_attention_reads_its_cache_once() -> None:
    args = inputs([6], [20], hq=4, hkv=1, d=48)
    args["v_cache"] = args["k_cache"][..., :32]
    dense(args)


def test_fp8_cache_with_scales() -> None:
    args = inputs([7], [20], cache_dtype=torch.float8_e4m3fn)
    dense({**args, "k_scale": 0.5, "v_scale": 2.0})


def test_logical_slots_are_mapped_to_device_slots() -> None:
    args = inputs([9, 4], [20, 0])
    slots = args["k_cache"].shape[0]
    gen = torch.Generator().manual_seed(3)
    args["slot_map"] = torch.randperm(slots, generator=gen).int().to(DEVICE)
    sparse(args)


def test_what_does_not_go_together_is_refused() -> None:
    from keel.kernels.triton.prefill import block_sparse_prefill

    args = inputs([4], [0])
    topk = torch.zeros(2, 4, 1, dtype=torch.int32)
    with pytest.raises(ValueError, match="powers of two"):
        block_sparse_prefill(**args, topk_idx=topk, max_q_len=4, block_q=3)
    with pytest.raises(ValueError, match="topk_idx must be"):
        block_sparse_prefill(**args, topk_idx=topk[:1], max_q_len=4)
