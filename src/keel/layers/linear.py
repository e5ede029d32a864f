"""Matrix products with weights, in the layout that the device wants.

`make_linear` is the seam for other representations of weights: models hold `Linear`s and never
look inside.
"""

from __future__ import annotations

import logging
from typing import Protocol

import torch
import torch.nn.functional as F

log = logging.getLogger(__name__)


class Linear(Protocol):
    """`x @ weight.T + bias`."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, in_features] to [T, out_features]."""


class DenseLinear:
    """Weights as they are, [out_features, in_features]."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight, self._bias = weight, bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self._weight, self._bias)


class PackedLinear:
    """Weights in oneDNN's blocked layout, for float32 on the CPU.

    Over SmolLM2-135M's shapes 1.2x `F.linear` for one row, 2.0x for 8 and the same for 512 (EPYC, 2
    cores, `bench/engine_cpu_operators.py`), since MKL packs its operands at each call.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)
        self._bias = bias
        self._call = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self._call(x, self._weight, self._bias, "none", [], "")
        return out


class HalfLinear:
    """Weights as float16, activations and sums float32 (FBGEMM, CPU): `--quantization w16`.

    Relative error of one product against float32 about 2e-4. int8 and 4-bit weights on torch's own
    operators are slower or far less exact than this (`docs/engine-cpu.md`).
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        torch.backends.quantized.engine = "fbgemm"
        self._packed = torch.ops.quantized.linear_prepack_fp16(weight.contiguous(), bias)
        self._call = torch.ops.quantized.linear_dynamic_fp16.default

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self._call(x, self._packed)
        return out


QUANTIZED = {"w16": HalfLinear}


def _engines() -> list[str]:
    return list(torch.backends.quantized.supported_engines)


def can_quantize(quantization: str) -> bool:
    """Whether this torch has FBGEMM; says so once where it has not."""
    if "fbgemm" in _engines():
        return True
    log.warning("--quantization %s is not used: this torch has no FBGEMM", quantization)
    return False


def make_linear(
    weight: torch.Tensor, bias: torch.Tensor | None = None, quantization: str | None = None
) -> Linear:
    """The fastest product for the weight's device and dtype.

    Args:
        quantization: a key of `QUANTIZED`, for float32 weights on the CPU; None is exact.
    """
    if quantization is not None:
        return QUANTIZED[quantization](weight, bias)
    packs = torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    if packs and weight.device.type == "cpu" and weight.dtype == torch.float32:
        return PackedLinear(weight, bias)
    return DenseLinear(weight, bias)
