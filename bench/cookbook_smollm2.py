"""Measure the SmolLM2 page's own commands, and write figures and records into its recipe.

    python bench/cookbook_smollm2.py [--write] [--runs 5] [--port 31510]

Every command that the recipe can give is started as a reader would start it and asked one question;
that is what a verification record says. The figures are those of `keel bench serve` for the two
strategies: one request alone, and sixteen at once. Nothing else should run.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx

from keel.bench.report import machine
from slipway.cookbook.examples import served
from slipway.cookbook.generate import Command, generate, reachable
from slipway.cookbook.load import Page, load_pages
from slipway.cookbook.render import render

ROOT = Path(__file__).resolve().parent.parent
RECIPE = ROOT / "docs/cookbook/recipes/huggingfacetb/smollm2-135m.toml"
METRICS = ROOT / "docs/cookbook/metrics.prom"
HERE = "bench/cookbook_smollm2.py"
MARK = f"# From here on written by {HERE}.\n"
PROMPT = 32
TOKENS = 64
TOGETHER = 16


def measure(url: str, count: int, runs: int, env: dict[str, str]) -> dict[str, Any]:
    """`keel bench serve` with `count` requests at once; its report."""
    command = [sys.executable, "-m", "keel", "bench", "serve", "--json", "--base-url", url]
    command += ["--num-prompts", str(count), "--runs", str(runs), "--warmup-requests", str(count)]
    command += ["--random-input-len", str(PROMPT), "--random-output-len", str(TOKENS)]
    done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout))


def environment(folder: Path) -> dict[str, str]:
    """An environment in which `keel` is this checkout's engine."""
    keel = folder / "keel"
    keel.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m keel "$@"\n')
    keel.chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "src")}


def hardware() -> str:
    """The processor's name and how many of its cores we have."""
    here = machine()
    return f"{here['cpu']}, {here['cores']} cores"


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


def figure(title: str, choices: dict[str, str], count: int, report: dict[str, Any]) -> str:
    """A report of `keel bench` as TOML."""
    row = report["figures"]
    rows = [
        ("Time to the first token, median", f"{row['ttft_ms']['p50']:.0f}", "ms"),
        ("Time per further token, median", f"{row['tpot_ms']['p50']:.1f}", "ms"),
        ("Generated, all requests together", f"{row['output_tokens_per_s']:.0f}", "tokens/s"),
    ]
    many = f"{count} requests at once" if count > 1 else "One request"
    note = (
        f"keel bench serve: {many}, {PROMPT} words of prompt and {TOKENS} tokens of answer each, "
        f"greedy; medians of {report['load']['runs']} runs. "
        f"Load average of the host: {report['machine']['load_average']:.1f}."
    )
    lines = [
        "[[figures]]",
        f"title = {value(title)}",
        f"choices = {inline(choices)}",
        f"date = {value(datetime.date.today().isoformat())}",
        f"hardware = {value(hardware())}",
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
        f"hardware = {value(hardware())}",
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
                    report = measure(url, count, runs, env)
                    figures.append(figure(title, choices, count, report))
                    print(figures[-1], flush=True)
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
