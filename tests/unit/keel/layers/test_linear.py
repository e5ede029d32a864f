"""Representations of weights against float32, with the error that docs/engine-cpu.md states."""

from __future__ import annotations

import pytest
import torch

from keel.args import ServerArgs
from keel.errors import ArgumentError
from keel.layers import linear
from keel.layers.linear import QUANTIZED, can_quantize, make_linear
from keel.models.runner import Device, choose_quantization

ERROR = {"w16": 1e-3}


@pytest.mark.parametrize("quantization", QUANTIZED)
@pytest.mark.parametrize("rows", [1, 8, 130])
def test_a_quantized_product_is_near_the_exact_one(quantization: str, rows: int) -> None:
    if not can_quantize(quantization):
        pytest.skip("this torch has no FBGEMM")
    random = torch.Generator().manual_seed(rows)
    weight = torch.randn(96, 160, generator=random) * 160**-0.5
    weight[3] = 0
    bias = torch.randn(96, generator=random)
    x = torch.randn(rows, 160, generator=random)
    exact = x @ weight.T + bias
    found = make_linear(weight, bias, quantization)(x)
    assert (found - exact).norm() <= ERROR[quantization] * exact.norm()
    torch.testing.assert_close(found[:, 3], bias[3].expand(rows))


@pytest.mark.parametrize("quantization", QUANTIZED)
def test_large_inputs_of_one_sign_do_not_overflow(quantization: str) -> None:
    if not can_quantize(quantization):
        pytest.skip("this torch has no FBGEMM")
    weight, x = torch.full((32, 512), 0.5), torch.full((2, 512), 3.0)
    found = make_linear(weight, None, quantization)(x)
    torch.testing.assert_close(found, x @ weight.T, rtol=1e-3, atol=0.0)


def test_quantization_is_refused_where_it_is_not_made() -> None:
    args = ServerArgs("m", quantization="w16")
    with pytest.raises(ArgumentError, match="--quantization w16 is for float32 on the CPU"):
        choose_quantization(args, Device(torch.device("cpu"), torch.bfloat16))
    where = Device(torch.device("cpu"), torch.float32)
    assert choose_quantization(ServerArgs("m"), where) is None


def test_a_torch_without_fbgemm_serves_exactly_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(linear, "_engines", lambda: ["none"])
    where = Device(torch.device("cpu"), torch.float32)
    assert choose_quantization(ServerArgs("m", quantization="w16"), where) is None
    assert [record.message for record in caplog.records] == [
        "--quantization w16 is not used: this torch has no FBGEMM"
    ]
