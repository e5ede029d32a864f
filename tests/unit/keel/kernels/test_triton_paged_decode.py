"""Dense paged decode against its oracle."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from keel.kernels.reference import attention
from support.kernels import DEVICE, paged_cache, queries, relative_error

HALF = torch.float16


def inputs(
    lengths: list[int], hq: int = 4, hkv: int = 2, d: int = 16, **layout: Any
) -> dict[str, Any]:
    return {
        "q": queries(len(lengths), hq, d, HALF),
        **paged_cache(lengths, hkv, d, HALF, **layout),
        "seq_lens": torch.tensor(lengths, dtype=torch.int32, device=DEVICE),
        "scale": d**-0.5,
    }


def check(args: dict[str, Any], parts: int = 2) -> None:
    from keel.kernels.triton.common import DecodeConfig
    from keel.kernels.triton.paged_decode import paged_decode

    shape = (*args["q"].shape[:2], args["v_cache"].shape[2])
    out = torch.full(shape, torch.nan, dtype=HALF, device=DEVICE)
    got = paged_decode(**args, out=out, config=DecodeConfig(parts, 16, 4, 2))
    assert relative_error(got, attention.paged_decode(**args)) < 1e-3


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_any_shape(data: st.DataObject) -> None:
    hkv = data.draw(st.sampled_from([1, 2]))
    args = inputs(
        data.draw(st.lists(st.integers(0, 90), min_size=1, max_size=3)),
        hq=hkv * data.draw(st.sampled_from([1, 3, 16])),
        hkv=hkv,
        d=data.draw(st.sampled_from([16, 24, 80])),
    )
    args["window"] = data.draw(st.sampled_from([0, 1, 17]))
    check(args, data.draw(st.sampled_from([1, 4])))


@pytest.mark.parametrize("kind", ["logits", "keys"])
def test_sinks(kind: str) -> None:
    sink = torch.randn(4 if kind == "logits" else (4, 24), device=DEVICE)
    check({**inputs([40, 3, 0], d=24), "sink": sink})


def test_latent_attention_reads_its_cache_once() -> None:
    args = inputs([33, 50], hq=8, hkv=1, d=48)
    args["v_cache"] = args["k_cache"][..., :32]
    check(args)


def test_fp8_cache_with_scales() -> None:
    args = inputs([50, 9], cache_dtype=torch.float8_e4m3fn)
    check({**args, "k_scale": 0.5, "v_scale": 2.0})
