"""Decode and prefill tokens/s of a random Llama-8B-shaped bfloat16 model on one GPU.

Next to each number its share of the limit: memory bandwidth for decoding (every weight is read once
a step), FLOPs for prefill. Weights are random and made on the GPU; nothing is read from disk.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))

import numpy as np  # noqa: E402
import torch  # noqa: E402

from keel.args import ServerArgs  # noqa: E402
from keel.messages import Generate, SamplingParams  # noqa: E402
from keel.models.config import ModelConfig, Rope  # noqa: E402
from keel.scheduler.build import build_scheduler  # noqa: E402

SHAPE = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=128256,
    hidden_size=4096,
    intermediate_size=14336,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    rms_norm_eps=1e-5,
    rope=Rope(theta=500000.0),
    max_position=8192,
    tie_embeddings=False,
    dtype="bfloat16",
)


class RandomCheckpoint:
    """Tensors of `SHAPE`, made when they are asked for."""

    path = Path("random")
    config = SHAPE

    def names(self) -> list[str]:
        return []

    def tensor(self, name: str) -> torch.Tensor:
        c = SHAPE
        query, key = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
        shapes = {
            "embed_tokens": (c.vocab_size, c.hidden_size),
            "lm_head": (c.vocab_size, c.hidden_size),
            "q_proj": (query, c.hidden_size),
            "k_proj": (key, c.hidden_size),
            "v_proj": (key, c.hidden_size),
            "o_proj": (c.hidden_size, query),
            "gate_proj": (c.intermediate_size, c.hidden_size),
            "up_proj": (c.intermediate_size, c.hidden_size),
            "down_proj": (c.hidden_size, c.intermediate_size),
        }
        kind = name.split(".")[-2]
        if kind not in shapes:
            return torch.ones(c.hidden_size, dtype=torch.bfloat16, device="cuda")
        shape = shapes[kind]
        return torch.randn(shape, dtype=torch.bfloat16, device="cuda") * shape[1] ** -0.5

    def tokenizer(self) -> Any:
        raise NotImplementedError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bandwidth", type=float, default=4.8e12, help="bytes/s; H200's default")
    parser.add_argument("--flops", type=float, default=790e12, help="bfloat16 FLOP/s")
    parser.add_argument("--prompt", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    args = ServerArgs("random", device="cuda", chunked_prefill_size=8192, disable_radix_cache=True)
    scheduler = build_scheduler(args, RandomCheckpoint()).scheduler
    weights = 2 * (8.03e9 - SHAPE.vocab_size * SHAPE.hidden_size)
    random = np.random.default_rng(0)

    def submit(count: int, length: int, new: int) -> None:
        how = SamplingParams(temperature=0.0, max_new_tokens=new, ignore_eos=True)
        for _ in range(count):
            ids = random.integers(0, SHAPE.vocab_size, length).tolist()
            scheduler.submit(Generate(f"r{random.integers(2**62)}", ids, how))

    def timed_step() -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        scheduler.step()
        torch.cuda.synchronize()
        return time.perf_counter() - start

    rows = []
    for batch in (1, 16, 64, 256):
        submit(batch, 128, 64)
        while scheduler.stats().running < batch:
            scheduler.step()
        for _ in range(8):
            scheduler.step()
        step = statistics.median(timed_step() for _ in range(20))
        scheduler.abort("")
        share = weights / step / options.bandwidth
        rows.append({"case": f"decode batch {batch}", "rate": batch / step, "limit": share})
    times = []
    for _ in range(options.rounds + 1):
        submit(1, options.prompt, 1)
        times.append(timed_step())
    first = statistics.median(times[1:])
    share = 2 * weights / 2 * options.prompt / first / options.flops
    rows.append(
        {"case": f"prefill {options.prompt}", "rate": options.prompt / first, "limit": share}
    )
    print(json.dumps({"gpu": torch.cuda.get_device_name(), "tokens_per_second": rows}, indent=2))


if __name__ == "__main__":
    main()
