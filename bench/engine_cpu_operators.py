"""torch's matrix products for weights on the CPU, each by itself, and what they do to a model.

    python bench/engine_cpu_operators.py [--model]

SmolLM2-135M's matrices, 2 threads. For 1 and 8 rows: median milliseconds of five passes over them
all; for 512 rows GFLOP/s over a quarter of them, without the head. Operators take turns. `error` is
the largest relative error of a product against float32. With --model: the error of all logits of
SmolLM2-135M over 256 tokens of this repository's licence, which says what a model bears.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src")]

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

from keel.args import ServerArgs  # noqa: E402
from keel.core import ForwardBatch  # noqa: E402
from keel.engine import Engine  # noqa: E402
from keel.layers import linear as linears  # noqa: E402
from keel.layers.linear import DenseLinear, HalfLinear, PackedLinear  # noqa: E402
from keel.weights.fetch import fetch  # noqa: E402

Product = Callable[[torch.Tensor], torch.Tensor]
SHAPES = [(960, 576), (576, 576), (3072, 576), (576, 1536)]  # qkv, o, gate and up, down
HEAD, DOWN = (49152, 576), (576, 1536)
ROUNDS = 5
GROUP = 32


class DynamicInt8:
    """int8 weights, a scale a row; activations are brought to int8 by one scale a call."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, engine: str = "fbgemm"):
        torch.backends.quantized.engine = engine
        scales = weight.abs().amax(1).double() / 127
        zeros = torch.zeros(len(scales), dtype=torch.long)
        packed = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
        self._packed = torch.ops.quantized.linear_prepack(packed, bias)
        self._narrow = engine == "fbgemm"  # its products overflow 16 bits otherwise

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.ops.quantized.linear_dynamic(x, self._packed, self._narrow)
        return out


def int8pack(dtype: torch.dtype) -> Callable[[torch.Tensor], Product]:
    """int8 weights, a scale a row; activations in `dtype`."""

    def make(weight: torch.Tensor) -> Product:
        scales = weight.abs().amax(1) / 127
        packed = (weight / scales[:, None]).round().to(torch.int8)
        scales = scales.to(dtype)
        return lambda x: torch.ops.aten._weight_int8pack_mm(x.to(dtype), packed, scales)

    return make


def int4pack(dtype: torch.dtype) -> Callable[[torch.Tensor], Product]:
    """4-bit weights, a scale and a zero for each group; activations in `dtype`."""

    def make(weight: torch.Tensor) -> Product:
        groups = weight.view(len(weight), -1, GROUP)
        low = groups.amin(2)
        scale = (groups.amax(2) - low) / 15
        values = ((groups - low[..., None]) / scale[..., None]).round().clamp(0, 15)
        values = values.to(torch.int32).view(weight.shape)
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(values, 1)
        how = torch.stack([scale, low + 8 * scale], -1).transpose(0, 1).contiguous().to(dtype)
        call = torch.ops.aten._weight_int4pack_mm_for_cpu
        return lambda x: call(x.to(dtype), packed, GROUP, how)

    return make


OPERATORS: dict[str, Callable[[torch.Tensor], Product]] = {
    "float32, oneDNN blocked": lambda w: PackedLinear(w, None),
    "float32, F.linear": lambda w: DenseLinear(w, None),
    "float16 weights, FBGEMM": lambda w: HalfLinear(w, None),
    "dynamic int8, FBGEMM": lambda w: DynamicInt8(w, None),
    "dynamic int8, oneDNN": lambda w: DynamicInt8(w, None, "onednn"),
    "_weight_int8pack_mm, bfloat16": int8pack(torch.bfloat16),
    "_weight_int4pack_mm_for_cpu, bfloat16": int4pack(torch.bfloat16),
}


def operators() -> None:
    """One line an operator."""
    torch.manual_seed(0)
    weights = [torch.randn(shape) * shape[1] ** -0.5 for shape in SHAPES for _ in range(12)]
    weights.append(torch.randn(HEAD) * 0.04)
    sample = list(range(0, len(weights) - 1, 4))
    made = {name: [make(w) for w in weights] for name, make in OPERATORS.items()}
    columns: dict[str, list[str]] = {name: [] for name in made}
    for rows in (1, 8, 512):
        which = range(len(weights)) if rows < 512 else sample
        inputs = {size: torch.randn(rows, size) for size in (576, 1536)}
        seconds: dict[str, list[float]] = {name: [] for name in made}
        for turn in range(ROUNDS + 1):
            for name, products in made.items():
                start = time.perf_counter()
                for index in which:
                    products[index](inputs[weights[index].shape[1]])
                if turn:  # the first warms up
                    seconds[name].append(time.perf_counter() - start)
        count = sum(weights[index].numel() for index in which)
        for name, values in seconds.items():
            middle = statistics.median(values)
            shown = middle * 1000 if rows < 512 else 2 * count * rows / middle / 1e9
            columns[name].append(f"{shown:>10.1f}")
    print(f"{'operator':<40}{'1 row, ms':>10}{'8, ms':>10}{'512, GF/s':>10}{'error':>10}")
    x = {size: torch.randn(8, size) for size in (576, 1536)}
    for name, products in made.items():
        error = max(
            relative(
                products[at](x[weights[at].shape[1]]),
                F.linear(x[weights[at].shape[1]], weights[at]),
            )
            for at in sample[::3]
        )
        print(f"{name:<40}{''.join(columns[name])}{error:>10.1e}", flush=True)


def relative(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Relative error in the Euclidean norm."""
    return float((found.float() - wanted).norm() / wanted.norm())


def whole_model() -> None:
    """One line a representation of the weights."""
    path = str(fetch("smollm2-135m"))
    text = (ROOT / "LICENSE").read_text()
    wanted: torch.Tensor | None = None
    print(f"\n{'SmolLM2-135M':<40}{'error':>10}{'same best':>10}{'loss':>10}")
    for name, kind in {
        "float32": None,
        "float16 weights": HalfLinear,
        "dynamic int8": DynamicInt8,
        "dynamic int8, float16 where it is down": lambda w, b: (
            HalfLinear(w, b) if tuple(w.shape) == DOWN else DynamicInt8(w, b)
        ),
    }.items():
        if kind is not None:
            linears.QUANTIZED["w16"] = kind
        args = ServerArgs(path, quantization="w16" if kind else None, max_total_tokens=2048)
        engine = Engine(args)
        ids = engine.tokenizer.encode(text)[:256]
        count = len(ids)
        batch = ForwardBatch(
            input_ids=torch.tensor(ids),
            positions=torch.arange(count),
            out_slots=torch.arange(1, count + 1),
            query_lens=np.array([count]),
            seq_lens=np.array([count]),
            num_decodes=0,
            rows=np.array([0]),
            table=torch.arange(1, 2049, dtype=torch.int32)[None].contiguous(),
            logit_index=torch.arange(count),
        )
        logits = engine._built.runner.logits(batch)
        wanted = logits if wanted is None else wanted
        same = (logits.argmax(-1) == wanted.argmax(-1)).float().mean()
        loss = F.cross_entropy(logits[:-1], torch.tensor(ids[1:]))
        print(f"{name:<40}{relative(logits, wanted):>10.1e}{same:>10.0%}{loss:>10.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", action="store_true", help="the whole model's logits too")
    options = parser.parse_args()
    torch.set_num_threads(2)
    with torch.inference_mode():
        operators()
        if options.model:
            whole_model()
    print(f"load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
