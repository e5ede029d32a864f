"""What the prefix cache gains, and what HTTP and scheduling cost, on SmolLM2-135M.

    python bench/engine_serving.py [--runs 5]

Two comparisons, each by `keel bench`, turn by turn in one run, medians of `--runs`:

- 32 chats at once that share a system message of 400 tokens: a server with the prefix cache against
  one without. Each round has a system message of its own, so what it finds in the cache is its own.
- 8 requests at once: the server against the engine alone (`keel bench offline`), the same prompts.
  The cost is the share of the server's time for a token that the engine alone does not need.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parent.parent
CHATS = "--num-prompts 32 --random-prefix-len 400 --random-input-len 24 --random-output-len 32"
EIGHT = "--num-prompts 8 --random-input-len 32 --random-output-len 64"
ENV = {**os.environ, "PYTHONPATH": str(ROOT / "src")}


def keel(*words: str) -> list[str]:
    """A command of this checkout's engine."""
    return [sys.executable, "-m", "keel", *words]


@contextmanager
def served(model: str, port: int, *flags: str) -> Iterator[str]:
    """A server, once it is ready; its URL."""
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile() as log:
        command = keel("serve", "--model-path", model, "--port", str(port), *flags)
        process = subprocess.Popen(command, env=ENV, stdout=log, stderr=log)
        try:
            for _ in range(600):
                time.sleep(0.2)
                try:
                    if httpx.get(f"{url}/health", trust_env=False).status_code == 200:
                        break
                except httpx.TransportError:
                    if process.poll() is not None:
                        raise
            yield url
        finally:
            process.terminate()
            process.wait(30)


def bench(seed: int, load: str, *words: str) -> dict[str, Any]:
    """One run's figures."""
    command = keel("bench", *words, *load.split(), "--seed", str(seed), "--json")
    done = subprocess.run(command, env=ENV, check=True, capture_output=True, text=True)
    figures: dict[str, Any] = json.loads(done.stdout)["figures"]
    assert figures["failed"] == 0, figures
    return figures


def show(name: str, rows: list[dict[str, Any]], other: list[dict[str, Any]], key: str) -> float:
    """A line of two medians; gives the median of the rounds' ratios."""
    ratio = statistics.median(a[key] / b[key] for a, b in zip(rows, other, strict=True))
    one, two = (statistics.median(row[key] for row in each) for each in (rows, other))
    print(f"{name:<44}{one:>10.2f}{two:>10.2f}{ratio:>8.2f}x", flush=True)
    return ratio


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--port", type=int, default=31610)
    options = parser.parse_args()
    fetched = subprocess.run(
        keel("models", "fetch", "smollm2-135m"), env=ENV, check=True, capture_output=True, text=True
    )
    model, port = fetched.stdout.split()[-1], options.port
    common = ("--enable-cache-report",)
    with (
        served(model, port, *common) as cached,
        served(model, port + 1, *common, "--disable-radix-cache") as plain,
    ):
        with_cache, without = [], []
        for seed in range(options.runs):
            for url, rows in ((cached, with_cache), (plain, without)):
                words = ("serve", "--base-url", url, "--tokenizer", model, "--endpoint", "chat")
                rows.append(bench(seed, CHATS, *words, "--warmup-requests", "0"))
        print(f"{'32 chats, 400 tokens shared':<44}{'cache':>10}{'none':>10}{'ratio':>9}")
        show("generated tokens a second", with_cache, without, "output_tokens_per_s")
        rate = statistics.median(row["cache_hit_rate"] for row in with_cache)
        print(f"{'hit rate':<44}{rate:>10.1%}")
        alone, behind = [], []
        for seed in range(options.runs):
            words = ("--base-url", plain, "--tokenizer", model, "--endpoint", "completions")
            behind.append(bench(seed, EIGHT, "serve", *words))
            alone.append(bench(seed, EIGHT, "offline", "--model-path", model))
        print(f"\n{'8 requests at once':<44}{'alone':>10}{'server':>10}{'ratio':>9}")
        ratio = show("generated tokens a second", alone, behind, "output_tokens_per_s")
        print(f"{'HTTP and scheduling, share of wall time':<44}{1 - 1 / ratio:>10.1%}")
    print(f"load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
