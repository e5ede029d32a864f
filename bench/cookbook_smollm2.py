"""Measure the SmolLM2 page's own commands, and write figures and records into its recipe.

    python bench/cookbook_smollm2.py [--write] [--runs 5] [--port 31510]

Every command that the recipe can give is started as a reader would start it and asked one question;
that is what a verification record says. The figures are of the two strategies: one request alone,
and sixteen at once. Medians of `--runs` runs after one that warms up. Nothing else should run.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

from slipway.cookbook.examples import served
from slipway.cookbook.generate import Command, generate, reachable
from slipway.cookbook.load import Page, load_pages
from slipway.cookbook.render import render

ROOT = Path(__file__).resolve().parent.parent
RECIPE = ROOT / "docs/cookbook/recipes/huggingfacetb/smollm2-135m.toml"
METRICS = ROOT / "docs/cookbook/metrics.prom"
HERE = "bench/cookbook_smollm2.py"
MARK = f"# From here on written by {HERE}.\n"
PROMPT = "Write a long story about a ship that leaves its slipway for the first time."
TOKENS = 64
TOGETHER = 16


def machine() -> str:
    """The processor's name and how many of its cores we have."""
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    name = re.sub(r"\s+", " ", found.group(1)) if found else platform.machine()
    return f"{name}, {len(os.sched_getaffinity(0))} cores"


async def ask(client: httpx.AsyncClient, number: int) -> tuple[float, float, int]:
    """(seconds to the first token, seconds between tokens, tokens) of one streamed answer."""
    body = {
        "model": "default",
        "prompt": f"{number}. {PROMPT}",
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
    }
    start = time.perf_counter()
    stamps = []
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if line.startswith("data: {") and json.loads(line[6:]).get("choices"):
                stamps.append(time.perf_counter())
    between = (stamps[-1] - stamps[0]) / (TOKENS - 1)
    return stamps[0] - start, between, TOKENS


async def burst(url: str, count: int, seed: int) -> dict[str, float]:
    """Numbers of `count` requests sent at once."""
    async with httpx.AsyncClient(base_url=url, timeout=300, trust_env=False) as client:
        start = time.perf_counter()
        rows = await asyncio.gather(*(ask(client, seed * 1000 + n) for n in range(count)))
        seconds = time.perf_counter() - start
    return {
        "first": statistics.median(row[0] for row in rows) * 1000,
        "between": statistics.median(row[1] for row in rows) * 1000,
        "rate": sum(row[2] for row in rows) / seconds,
    }


def measure(url: str, count: int, runs: int) -> dict[str, float]:
    """Medians over runs, after one that warms up."""
    rows = [asyncio.run(burst(url, count, seed)) for seed in range(runs + 1)][1:]
    return {key: statistics.median(row[key] for row in rows) for key in rows[0]}


def environment(folder: Path) -> dict[str, str]:
    """An environment in which `keel` is this checkout's engine."""
    keel = folder / "keel"
    keel.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m keel "$@"\n')
    keel.chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "src")}


def commit() -> str:
    """The commit of this checkout, with a plus where it has changes."""
    git = ["git", "-C", str(ROOT)]
    sha = subprocess.run([*git, "rev-parse", "--short=9", "HEAD"], capture_output=True, text=True)
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "src/keel"]).returncode
    return sha.stdout.strip() + ("+" if changed else "")


def value(text: str) -> str:
    """A TOML string."""
    return json.dumps(text, ensure_ascii=False)


def inline(choices: dict[str, str]) -> str:
    """A TOML inline table."""
    return "{ " + ", ".join(f"{key} = {value(one)}" for key, one in choices.items()) + " }"


def figure(title: str, choices: dict[str, str], count: int, row: dict[str, float]) -> str:
    """A figure as TOML."""
    today = datetime.date.today().isoformat()
    rows = [
        ("Time to the first token", f"{row['first']:.0f}", "ms"),
        ("Time between tokens", f"{row['between']:.1f}", "ms"),
        ("Generated, all requests together", f"{row['rate']:.0f}", "tokens/s"),
    ]
    load = os.getloadavg()[0]
    many = f"{count} requests at once" if count > 1 else "One request"
    note = f"{many}, {TOKENS} tokens each, greedy; medians. Load average of the host: {load:.1f}."
    lines = [
        "[[figures]]",
        f"title = {value(title)}",
        f"choices = {inline(choices)}",
        f"date = {value(today)}",
        f"hardware = {value(machine())}",
        f"source = {value(HERE)}",
        f"note = {value(note)}",
        "rows = [",
        *(f"    [{', '.join(map(value, one))}]," for one in rows),
        "]",
    ]
    return "\n".join(lines)


def record(choices: dict[str, str], command: Command) -> str:
    """A verification record as TOML."""
    lines = [
        "[[verified]]",
        f"choices = {inline(choices)}",
        f"hash = {value(command.hash)}",
        f"date = {value(datetime.date.today().isoformat())}",
        f"hardware = {value(machine())}",
        f"how = {value(f'{HERE} from the source at {commit()}')}",
    ]
    return "\n".join(lines)


def run(page: Page, port: int, runs: int) -> tuple[list[str], str]:
    """Figures and records as TOML, and the names of the metrics."""
    sys.path.insert(0, str(ROOT / "src"))
    from keel.weights.fetch import fetch

    model = fetch("smollm2-135m")
    values = {"model-dir": str(model.parent), "port": str(port)}
    url = f"http://127.0.0.1:{port}"
    measured = {
        "low-latency": ("One request alone", 1),
        "throughput": ("Sixteen at once", TOGETHER),
    }
    figures, records, metrics = [], [], ""
    defaults = {layer.id: layer.default for layer in page.recipe.layers}
    with tempfile.TemporaryDirectory(prefix="keel-bin-") as folder:
        env = environment(Path(folder))
        for choices in reachable(page.recipe):
            command = generate(page.kitchen, {**choices, **values})
            with served(render(page.kitchen, command, "shell"), "127.0.0.1", port, env):
                answer = httpx.post(
                    f"{url}/v1/completions",
                    json={
                        "model": "default",
                        "prompt": "The capital of France is",
                        "max_tokens": 4,
                    },
                    timeout=120,
                    trust_env=False,
                )
                answer.raise_for_status()
                records.append(record(choices, command))
                print(choices, repr(answer.json()["choices"][0]["text"]), flush=True)
                if all(choices[id_] == default for id_, default in defaults.items()):
                    title, count = measured[choices["strategy"]]
                    row = measure(url, count, runs)
                    figures.append(figure(title, choices, count, row))
                    print(title, {key: round(one, 1) for key, one in row.items()}, flush=True)
                if not metrics:
                    text = httpx.get(f"{url}/metrics", trust_env=False).text
                    kept = [one for one in text.splitlines() if one.startswith("# ")]
                    metrics = "\n".join(kept) + "\n"
    return figures + records, metrics


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--write", action="store_true", help="into the recipe and metrics.prom")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--port", type=int, default=31510)
    options = parser.parse_args()
    page = load_pages(ROOT)["smollm2-135m"]
    blocks, metrics = run(page, options.port, options.runs)
    if options.write:
        text = RECIPE.read_text(encoding="utf-8").split(MARK)[0].rstrip("\n")
        RECIPE.write_text("\n\n".join([text, MARK.rstrip(), *blocks]) + "\n", encoding="utf-8")
        METRICS.write_text(metrics, encoding="utf-8")


if __name__ == "__main__":
    main()
