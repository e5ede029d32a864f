"""The small fused operations against their oracles."""

from __future__ import annotations

import pytest
import torch

from keel.kernels.reference import elementwise as oracle
from support.kernels import DEVICE, relative_error

HALF = torch.float16


@pytest.mark.parametrize("d", [16, 100, 576])
@pytest.mark.parametrize("with_residual", [False, True])
def test_rms_norm(d: int, with_residual: bool) -> None:
    from keel.kernels.triton.elementwise import rms_norm

    x = torch.randn(5, 2 * d, device=DEVICE).to(HALF)[:, :d]
    residual = torch.randn_like(x) if with_residual else None
    weight = torch.randn(d, device=DEVICE).to(HALF)
    normed, total = rms_norm(x, weight, 1e-5, residual)
    expected, expected_total = oracle.rms_norm(x, weight, 1e-5, residual)
    assert relative_error(normed, expected) < 1e-3
    assert torch.equal(total, expected_total)


@pytest.mark.parametrize("d", [16, 100, 1500])
def test_silu_mul(d: int) -> None:
    from keel.kernels.triton.elementwise import silu_mul

    x = torch.randn(3, 2 * d, device=DEVICE).to(HALF)
    assert relative_error(silu_mul(x), oracle.silu_mul(x)) < 1e-3


@pytest.mark.parametrize(("d", "rotated"), [(16, 16), (24, 8), (128, 64)])
def test_rope(d: int, rotated: int) -> None:
    from keel.kernels.triton.elementwise import rope_

    x = torch.randn(4, 3, d, device=DEVICE).to(HALF)
    angles = torch.rand(4, rotated // 2, device=DEVICE) * 6
    cos, sin = angles.cos(), angles.sin()
    expected = oracle.rope(x, cos, sin)
    assert relative_error(rope_(x, cos, sin), expected) < 1e-3


@pytest.mark.parametrize("cache", [HALF, torch.float8_e4m3fn])
def test_store_kv(cache: torch.dtype) -> None:
    from keel.kernels.triton.elementwise import store_kv

    k = torch.randn(5, 2, 16, device=DEVICE).to(HALF)
    v = torch.randn(5, 2, 12, device=DEVICE).to(HALF)
    slots = torch.tensor([3, -1, 0, 7, -1], device=DEVICE)
    mine = [torch.zeros(9, 2, w, device=DEVICE).to(cache) for w in (16, 12)]
    theirs = [t.clone() for t in mine]
    scales = (1.0, 1.0) if cache == HALF else (0.5, 2.0)
    store_kv(k, v, slots, *mine, k_scale=scales[0], v_scale=scales[1])
    oracle.store_kv(k, v, slots, *theirs, *scales)
    for a, b in zip(mine, theirs, strict=True):
        if cache == HALF or DEVICE.type == "cuda":
            assert torch.equal(a.float(), b.float())
        else:  # The interpreter does not round to fp8 as devices do.
            assert relative_error(a, b) < 0.1
