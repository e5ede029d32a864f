"""Block-sparse decode on the device: sizes of real models, every cut, CUDA graphs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from keel.kernels.reference import attention
from support.kernels import DEVICE, TOLERANCE, paged_cache, queries, relative_error, selection

pytestmark = pytest.mark.gpu

LENGTHS = [2048, 0, 77, 8192, 5000, 1, 128, 129]


def inputs(
    hq: int, hkv: int, dtype: torch.dtype, lengths: list[int] = LENGTHS, d: int = 128, **layout: Any
) -> dict[str, Any]:
    wild = layout.pop("wild", False)
    return {
        "q": queries(len(lengths), hq, d, dtype),
        **paged_cache(lengths, hkv, d, dtype, **layout),
        "seq_lens": torch.tensor(lengths, dtype=torch.int32, device=DEVICE),
        "topk_idx": selection(lengths, hkv, 16, 128, wild=wild),
        "block": 128,
        "scale": d**-0.5,
    }


def error(args: dict[str, Any], **only_kernel: Any) -> float:
    from keel.kernels.triton.sparse_decode import block_sparse_decode

    out = torch.full_like(args["q"], torch.nan)
    block_sparse_decode(**args, **only_kernel, out=out)
    on_cpu = {k: v.cpu() if isinstance(v, torch.Tensor) else v for k, v in args.items()}
    return relative_error(out, attention.block_sparse_decode(**on_cpu))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("hq", "hkv"), [(16, 1), (64, 4), (8, 8), (24, 2)])
@pytest.mark.parametrize("page", [1, 128])
@pytest.mark.parametrize("wild", [False, True])
def test_against_float64(dtype: torch.dtype, hq: int, hkv: int, page: int, wild: bool) -> None:
    args = inputs(hq, hkv, dtype, page=page, wild=wild)
    assert error(args, page_size=page) < TOLERANCE[dtype]


@pytest.mark.parametrize("parts", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize(("tile", "warps"), [(32, 4), (64, 4), (128, 8)])
def test_every_cut(parts: int, tile: int, warps: int) -> None:
    from keel.kernels.triton.sparse_decode import DecodeConfig

    args = inputs(16, 1, torch.bfloat16, wild=True)
    assert error(args, config=DecodeConfig(parts, tile, warps, 3)) < TOLERANCE[torch.bfloat16]


@pytest.mark.parametrize("cache", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_fp8_cache(cache: torch.dtype) -> None:
    args = inputs(16, 1, torch.bfloat16, cache_dtype=cache)
    assert error({**args, "k_scale": 0.7, "v_scale": 1.3}) < TOLERANCE[torch.bfloat16]


@pytest.mark.parametrize("shape", [(16,), (16, 128)])
def test_sink(shape: tuple[int, ...]) -> None:
    sink = torch.randn(shape, device=DEVICE)
    args = {**inputs(16, 1, torch.bfloat16), "sink": sink}
    assert error(args) < TOLERANCE[torch.bfloat16]


def test_one_graph_serves_any_lengths() -> None:
    """A graph captured once is right for other lengths, selections and numbers, many times over."""
    from keel.kernels.triton.sparse_decode import block_sparse_decode

    args = inputs(16, 1, torch.bfloat16)
    out = torch.empty_like(args["q"])
    block_sparse_decode(**args, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        block_sparse_decode(**args, out=out)
    for seed in range(4):
        lengths = torch.randint(0, 8193, (len(LENGTHS),)).tolist()
        fresh = inputs(16, 1, torch.bfloat16, lengths, seed=seed)
        table = torch.zeros_like(args["req_to_token"])
        table[:, : fresh["req_to_token"].shape[1]] = fresh["req_to_token"]
        slots = args["k_cache"].shape[0]
        fresh["req_to_token"] = torch.where(table < slots, table % slots, table)
        fresh.update(k_cache=args["k_cache"], v_cache=args["v_cache"])
        for name in ("q", "seq_lens", "topk_idx", "req_to_token"):
            args[name].copy_(fresh[name])
        for _ in range(3):
            out.fill_(torch.nan)
            graph.replay()
        on_cpu = {k: v.cpu() if isinstance(v, torch.Tensor) else v for k, v in args.items()}
        assert relative_error(out, attention.block_sparse_decode(**on_cpu)) < 4e-3
