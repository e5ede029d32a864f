"""`keel bench offline`: the same load on the engine inside this process, without HTTP."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from keel.args.bench import BenchOfflineArgs, parse_bench_offline
from keel.bench.record import Record, figures
from keel.bench.report import report, show
from keel.bench.workload import Prompt, arrivals, exact, prompts
from keel.errors import ArgumentError


def main(argv: Sequence[str]) -> None:
    """Run and print.

    Raises:
        ArgumentError: the command line cannot be meant, or a prompt does not fit.
        ModelError: the model cannot be loaded.
    """
    args = parse_bench_offline(argv)
    show(run(args), args)


def run(args: BenchOfflineArgs) -> dict[str, Any]:
    """All runs; the report as JSON has it."""
    # As `keel serve` sets it for its scheduler, before torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from keel.engine import Engine

    engine = Engine(args)
    tokenizer = engine.tokenizer
    write = exact(lambda text: tokenizer.encode(text, add_special_tokens=False), tokenizer.decode)
    if args.warmup_requests:
        warm = replace(args, num_prompts=args.warmup_requests, request_rate=float("inf"))
        drive(engine, warm, prompts(warm, -1, write), arrivals(warm, -1))
    runs = []
    for number in range(args.runs):
        records = drive(engine, args, prompts(args, number, write), arrivals(args, number))
        runs.append((figures(records), records))
    return {**report("offline", args.model_path, args, runs), "model": args.model_name}


def drive(
    engine: Any, args: BenchOfflineArgs, asked: Sequence[Prompt], when: Sequence[float]
) -> list[Record]:
    """Put one run's prompts into the scheduler as they are due, and step it until all are done.

    A token is counted when the step that made it ends; text is not made of it.

    Args:
        engine: a `keel.engine.Engine`.
    """
    from keel.messages import Generate, SamplingParams

    ids = [_ids(engine, prompt) for prompt in asked]
    records: list[Record] = []
    running: dict[str, Record] = {}
    start = time.perf_counter()
    most = args.max_concurrency or len(asked)
    while len(records) < len(asked) or running:
        now = time.perf_counter()
        while len(records) < len(asked) and len(running) < most:
            at = len(records)
            if start + when[at] > now:
                break
            rid = f"bench-{at}"
            how = SamplingParams(
                max_new_tokens=asked[at].new_tokens,
                temperature=0.0,
                ignore_eos=not args.disable_ignore_eos,
            )
            refused = engine.scheduler.submit(Generate(rid, ids[at], how))
            if refused and refused.finish:
                raise ArgumentError(
                    f"a prompt was refused: {refused.finish.message}",
                    "ask for shorter ones, or raise --context-length or --max-total-tokens",
                )
            running[rid] = Record(now, prompt_tokens=len(ids[at]))
            records.append(running[rid])
        if not running:
            time.sleep(max(0.0, start + when[len(records)] - time.perf_counter()))
            continue
        step = engine.scheduler.step()
        now = time.perf_counter()
        for tokens in step:
            record = running[tokens.rid]
            record.stamps.append(now)
            record.output_tokens += len(tokens.ids)
            record.cached_tokens = tokens.cached_tokens
            if tokens.finish is not None:
                del running[tokens.rid]
    return records


def _ids(engine: Any, prompt: Prompt) -> list[int]:
    """The prompt as one text: a conversation is joined, without the model's template."""
    text = "\n".join(str(one.get("content", "")) for one in prompt.messages) or prompt.text
    ids: list[int] = engine.tokenizer.encode(f"{prompt.prefix} {text}" if prompt.prefix else text)
    return ids
