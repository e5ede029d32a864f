"""Block-sparse decode against its oracle, on shapes and layouts made to break it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from keel.kernels.reference import attention
from support.kernels import DEVICE, TOLERANCE, paged_cache, queries, relative_error, selection


def check(args: dict[str, Any], dtype: torch.dtype = torch.float16, **only_kernel: Any) -> None:
    from keel.kernels.triton.sparse_decode import block_sparse_decode

    out = torch.full((*args["q"].shape[:2], args["v_cache"].shape[2]), torch.nan, dtype=dtype)
    got = block_sparse_decode(**args, **only_kernel, out=out.to(DEVICE))
    assert relative_error(got, attention.block_sparse_decode(**args)) < TOLERANCE[dtype]


def inputs(
    lengths: list[int], hq: int = 4, hkv: int = 1, d: int = 16, k: int = 3, block: int = 16,
    dtype: torch.dtype = torch.float16, **layout: Any,
) -> dict[str, Any]:  # fmt: skip
    wild = layout.pop("wild", False)
    return {
        "q": queries(len(lengths), hq, d, dtype),
        **paged_cache(lengths, hkv, d, dtype, **layout),
        "seq_lens": torch.tensor(lengths, dtype=torch.int32, device=DEVICE),
        "topk_idx": selection(lengths, hkv, k, block, wild=wild),
        "block": block,
        "scale": d**-0.5,
    }


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_shape_and_layout(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(0, 100), min_size=1, max_size=3))
    hkv = data.draw(st.sampled_from([1, 2]))
    args = inputs(
        lengths,
        hq=hkv * data.draw(st.sampled_from([1, 3, 16, 17])),
        hkv=hkv,
        d=data.draw(st.sampled_from([16, 24, 64])),
        k=data.draw(st.integers(1, 5)),
        block=data.draw(st.sampled_from([16, 32])),
        wild=data.draw(st.booleans()),
        seed=data.draw(st.integers(0, 9)),
    )
    check(args)


@pytest.mark.parametrize("parts", [1, 2, 4, 8])
def test_every_cut_gives_the_same(parts: int) -> None:
    from keel.kernels.triton.sparse_decode import DecodeConfig

    args = inputs([130, 1, 0, 37], hq=4, hkv=2, k=4, block=32)
    check(args, config=DecodeConfig(parts, 16, 4, 2))


@pytest.mark.parametrize("kind", ["logits", "keys"])
def test_sink(kind: str) -> None:
    args = inputs([50, 9, 0])
    args["sink"] = torch.randn(4, dtype=torch.float32) if kind == "logits" else torch.randn(4, 16)
    args["sink"] = args["sink"].to(DEVICE)
    check(args)


def test_slots_of_hisparse_replace_the_table() -> None:
    args = inputs([70, 33], hkv=2, k=4)
    bs, k, block = 2, 4, 16
    slots = torch.randint(0, 40, (2, bs, k * block), dtype=torch.int32, device=DEVICE)
    slots[:, :, 5] = -1
    args["device_slots"] = slots
    args["req_to_token"] = torch.full_like(args["req_to_token"], 1 << 30)
    check(args)


def test_contiguous_pages_need_one_lookup() -> None:
    check(inputs([130, 64, 5], block=64, page=64), page_size=64)


def test_fp8_cache_with_scales() -> None:
    args = inputs([60, 17], cache_dtype=torch.float8_e4m3fn)
    check({**args, "k_scale": 0.5, "v_scale": 2.0})


def test_the_workspace_is_left_as_it_was_found() -> None:
    from keel.kernels.triton.common import Workspace
    from keel.kernels.triton.sparse_decode import DecodeConfig

    workspace = Workspace.allocate(8, 2, 16, 16, DEVICE)
    for _ in range(2):
        check(inputs([60, 17], k=4), config=DecodeConfig(4, 16, 4, 2), workspace=workspace)
        assert workspace.tickets.eq(0).all()


def test_what_does_not_go_together_is_refused() -> None:
    from keel.kernels.triton.sparse_decode import block_sparse_decode

    args = inputs([60])
    with pytest.raises(ValueError, match="power of two"):
        block_sparse_decode(**{**args, "block": 24})
    with pytest.raises(ValueError, match="bfloat16 or float16"):
        block_sparse_decode(**{**args, "q": args["q"].float()})
    with pytest.raises(ValueError, match="topk_idx"):
        block_sparse_decode(**{**args, "topk_idx": args["topk_idx"][:, :0]})
    with pytest.raises(ValueError, match="a sink is"):
        block_sparse_decode(**{**args, "sink": torch.zeros(3, device=DEVICE)})
