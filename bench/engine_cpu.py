"""keel against Hugging Face transformers on this machine's CPU, float32, in one run.

Prefill of 512 tokens and decoding at batch 1 and 8 after prompts of 128 tokens, SmolLM2-135M.
Rounds alternate between the two, so that a noisy neighbour disturbs both. The ratio is the median
of the rounds'; `best` is that of the best rounds, which is
what a machine shared with others can still tell.
Prints a table, and with --json a JSON object instead.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Before torch is loaded: the same for both sides, and what `keel serve` sets for its scheduler.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
ROOT = Path(__file__).parents[1]
# Not this folder, which a script is started with: its `kernels` would hide the package that
# transformers imports.
sys.path[:] = [place for place in sys.path if Path(place or ".").resolve() != ROOT / "bench"]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

import numpy as np  # noqa: E402
import torch  # noqa: E402

from keel.args import ServerArgs  # noqa: E402
from keel.engine import Engine  # noqa: E402
from keel.messages import SamplingParams  # noqa: E402
from keel.weights.fetch import fetch  # noqa: E402
from support import reference  # noqa: E402

PREFILL, PROMPT, NEW = 512, 128, 32
TARGETS = {"prefill 512": 1.0, "decode batch 1": 1.4, "decode batch 8": None}


def prompts(count: int, length: int, seed: int) -> list[list[int]]:
    """Random tokens, so that no prefix is cached."""
    return np.random.default_rng(seed).integers(1000, 40000, (count, length)).tolist()


def timed(work: Callable[[], Any]) -> float:
    """Seconds."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


class Keel:
    """The in-process engine; scheduling, sampling and detokenizing included."""

    def __init__(self, path: Path, quantization: str | None = None) -> None:
        self._engine = Engine(
            ServerArgs(str(path), chunked_prefill_size=4096, quantization=quantization)
        )

    def generate(self, ids: list[list[int]], new: int) -> None:
        how = SamplingParams(temperature=0.0, max_new_tokens=new, ignore_eos=True)
        answers = self._engine.generate(ids, how)
        assert all(len(answer.ids) == new for answer in answers)


class Transformers:
    """`generate`, as its users call it."""

    def __init__(self, path: Path) -> None:
        self._model, _ = reference.load(path)

    def generate(self, ids: list[list[int]], new: int) -> None:
        with torch.inference_mode():
            batch = torch.tensor(ids)
            out = self._model.generate(
                batch,
                attention_mask=torch.ones_like(batch),
                max_new_tokens=new,
                min_new_tokens=new,
                do_sample=False,
                pad_token_id=0,
            )
        assert out.shape[1] == len(ids[0]) + new


def measure(side: Keel | Transformers, seed: int) -> dict[str, float]:
    """Tokens a second of one round."""
    rates = {"prefill 512": PREFILL / timed(lambda: side.generate(prompts(1, PREFILL, seed), 1))}
    for batch in (1, 8):
        ids = prompts(batch, PROMPT, seed + batch)
        first = timed(lambda ids=ids: side.generate(ids, 1))
        ids = prompts(batch, PROMPT, seed + 100 + batch)
        whole = timed(lambda ids=ids: side.generate(ids, 1 + NEW))
        rates[f"decode batch {batch}"] = batch * NEW / (whole - first)
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    path = fetch("smollm2-135m")
    sides = {"keel": Keel(path), "transformers": Transformers(path)}
    for side in sides.values():
        measure(side, 0)
    seen: dict[str, dict[str, list[float]]] = {name: {} for name in sides}
    for round_ in range(options.rounds):
        for name, side in sides.items():
            for case, rate in measure(side, 1000 * (round_ + 1)).items():
                seen[name].setdefault(case, []).append(rate)
    rows = []
    for case, target in TARGETS.items():
        ours = statistics.median(seen["keel"][case])
        theirs = statistics.median(seen["transformers"][case])
        pairs = zip(seen["keel"][case], seen["transformers"][case], strict=True)
        rows.append(
            {
                "case": case,
                "keel": ours,
                "transformers": theirs,
                "ratio": statistics.median(a / b for a, b in pairs),
                "best_ratio": max(seen["keel"][case]) / max(seen["transformers"][case]),
                "target": target,
            }
        )
    result = {
        "model": path.name,
        "dtype": "float32",
        "threads": options.threads,
        "rounds": options.rounds,
        "torch": torch.__version__,
        "machine": platform.processor() or platform.machine(),
        "load": os.getloadavg()[0],
        "tokens_per_second": rows,
    }
    if options.json:
        print(json.dumps(result, indent=2))
        return
    print(f"{path.name}, float32, {options.threads} threads, medians of {options.rounds} rounds")
    print(
        f"{'':<16}{'keel':>10}{'transformers':>14}{'ratio':>8}{'best':>7}{'must be':>9}   tokens/s"
    )
    for row in rows:
        must = "" if row["target"] is None else f"{row['target']:.1f}"
        print(
            f"{row['case']:<16}{row['keel']:>10.1f}{row['transformers']:>14.1f}"
            f"{row['ratio']:>8.2f}"
            f"{row['best_ratio']:>7.2f}{must:>9}"
        )


if __name__ == "__main__":
    main()
