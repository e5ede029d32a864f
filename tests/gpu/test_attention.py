"""Dense and block-sparse attention and the indexer on the device, at sizes of real models."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from keel.kernels.reference import attention
from keel.kernels.reference import indexer as indexer_oracle
from support.kernels import DEVICE, TOLERANCE, paged_cache, queries, relative_error, selection

pytestmark = pytest.mark.gpu


def on_cpu(args: dict[str, Any]) -> dict[str, Any]:
    return {k: v.cpu() if isinstance(v, torch.Tensor) else v for k, v in args.items()}


def decode_inputs(lengths: list[int], hq: int, hkv: int, d: int, dtype: torch.dtype,
                  **layout: Any) -> dict[str, Any]:  # fmt: skip
    return {
        "q": queries(len(lengths), hq, d, dtype),
        **paged_cache(lengths, hkv, d, dtype, **layout),
        "seq_lens": torch.tensor(lengths, dtype=torch.int32, device=DEVICE),
        "scale": d**-0.5,
    }


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("hq", "hkv", "d"), [(32, 8, 128), (8, 8, 64), (28, 4, 128), (14, 2, 96)])
@pytest.mark.parametrize("window", [0, 500])
def test_paged_decode(dtype: torch.dtype, hq: int, hkv: int, d: int, window: int) -> None:
    from keel.kernels.triton.paged_decode import paged_decode

    args = decode_inputs([4000, 0, 1, 777, 64], hq, hkv, d, dtype)
    args["window"] = window
    args["sink"] = torch.randn(hq, device=DEVICE)
    out = torch.full_like(args["q"], torch.nan)
    paged_decode(**args, out=out)
    assert relative_error(out, attention.paged_decode(**on_cpu(args))) < TOLERANCE[dtype]


def test_latent_decode() -> None:
    from keel.kernels.triton.paged_decode import paged_decode

    args = decode_inputs([2000, 5, 0, 129], 128, 1, 576, torch.bfloat16)
    args["v_cache"] = args["k_cache"][..., :512]
    out = paged_decode(**args)
    expected = on_cpu(args)
    expected["v_cache"] = expected["k_cache"][..., :512]
    assert relative_error(out, attention.paged_decode(**expected)) < 4e-3


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(("hq", "hkv", "block_q"), [(16, 1, 1), (32, 8, 16), (64, 4, 4)])
def test_prefill(sparse: bool, hq: int, hkv: int, block_q: int) -> None:
    from keel.kernels.triton.prefill import block_sparse_prefill, paged_prefill

    new, prefix, d = [70, 1, 33], [0, 3000, 127], 128
    totals = [n + p for n, p in zip(new, prefix, strict=True)]
    cu = torch.tensor([0, *new], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    args = {
        "q": queries(sum(new), hq, d, torch.bfloat16),
        **paged_cache(totals, hkv, d, torch.bfloat16),
        "cu_seqlens": cu.to(DEVICE),
        "prefix_lens": torch.tensor(prefix, dtype=torch.int32, device=DEVICE),
        "scale": d**-0.5,
    }
    if sparse:
        ends = [
            p + min(n, start + block_q)
            for n, p in zip(new, prefix, strict=True)
            for start in range(0, n, block_q)
        ]
        args["topk_idx"] = selection(ends, hkv, 4, 128, wild=True)
        args.update(block=128, block_q=block_q)
        got = block_sparse_prefill(**args, max_q_len=70)
        expected = attention.block_sparse_prefill(**on_cpu(args))
    else:
        got = paged_prefill(**args, max_q_len=70)
        expected = attention.paged_prefill(**on_cpu(args))
    assert relative_error(got, expected) < 4e-3


def test_latent_prefill() -> None:
    from keel.kernels.triton.prefill import paged_prefill

    args = {
        "q": queries(9, 128, 576, torch.bfloat16),
        **paged_cache([209], 1, 576, torch.bfloat16),
        "cu_seqlens": torch.tensor([0, 9], dtype=torch.int32, device=DEVICE),
        "prefix_lens": torch.tensor([200], dtype=torch.int32, device=DEVICE),
        "scale": 576**-0.5,
    }
    expected = on_cpu(args)
    args["v_cache"] = args["k_cache"][..., :512]
    expected["v_cache"] = expected["k_cache"][..., :512]
    got = paged_prefill(**args, max_q_len=9)
    assert relative_error(got, attention.paged_prefill(**expected)) < 4e-3


@pytest.mark.parametrize("k", [8, 16, 32])
def test_the_indexer_chooses_what_the_oracle_would_up_to_rounding(k: int) -> None:
    from keel.kernels.triton.indexer import block_scores, select_blocks

    lengths = [16000, 100, 0, 5000]
    args = decode_inputs(lengths, 4, 1, 128, torch.bfloat16)
    visible = args["seq_lens"]
    where = (args["req_to_token"], args["req_ids"], torch.arange(4, device=DEVICE).int(), visible)
    graph = torch.cuda.CUDAGraph()
    for capture in (False, True):
        context = torch.cuda.graph(graph) if capture else torch.no_grad()
        with context:
            scores = block_scores(args["q"], args["k_cache"], *where)
            chosen = select_blocks(scores, visible, k=k, init=1, local=1)
    graph.replay()
    expected = indexer_oracle.block_scores(
        args["q"].cpu(), args["k_cache"].cpu(), *(t.cpu() for t in where), 128
    )
    for h in range(4):
        for b, length in enumerate(lengths):
            count = -(-length // 128)
            row = expected[h, b, :count]
            assert relative_error(scores[h, b, :count], row) < 4e-3
            got = [x for x in chosen[h, b].tolist() if x >= 0]
            assert len(got) == len(set(got)) == min(k, count)
            if count > k:
                left = sorted(set(range(count)) - set(got))
                free = [x for x in got if 0 < x < count - 1]
                assert min(row[free]) >= max(row[left]) - 0.1
    assert torch.equal(
        chosen.cpu(), indexer_oracle.select_blocks(scores.cpu(), visible.cpu(), 128, k, 1, 1)
    )
