"""A bench's report: JSON with a schema that stays, and a table for people."""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from keel.args.bench import LoadArgs
from keel.bench.record import Figures, Record

# Raised when a key changes its meaning or goes; new keys may come at any time.
SCHEMA = 1


def machine() -> dict[str, Any]:
    """Where the client runs, and how busy that is: figures of a busy machine tell little."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return {
        "cpu": re.sub(r"\s+", " ", found.group(1)) if found else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": round(os.getloadavg()[0], 2),
    }


def report(
    kind: str, target: str, args: LoadArgs, runs: Sequence[tuple[Figures, list[Record]]]
) -> dict[str, Any]:
    """The report as JSON has it.

    Args:
        kind: `serve` or `offline`.
        target: what was asked: a URL, or a model.
        runs: figures and records of each.
    """
    every = [asdict(one) for one, _ in runs]
    errors = sorted({record.error for _, records in runs for record in records if record.error})
    load = {
        name: getattr(args, name)
        for name in LoadArgs.__dataclass_fields__
        if name not in ("output_file", "json")
    }
    load["request_rate"] = None if args.request_rate == float("inf") else args.request_rate
    return {
        "schema": SCHEMA,
        "kind": kind,
        "target": target,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "load": load,
        "figures": _median(every),
        "runs": every,
        "errors": errors[:10],
    }


def _median(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The median of each figure; a median of whole numbers need not be one."""
    found: dict[str, Any] = {}
    for key, first in rows[0].items():
        values = [row[key] for row in rows]
        found[key] = _median(values) if isinstance(first, dict) else statistics.median(values)
    return found


def table(whole: dict[str, Any]) -> str:
    """The report for people."""
    row, load, here = whole["figures"], whole["load"], whole["machine"]
    rate = "all at once" if load["request_rate"] is None else f"{load['request_rate']:g} a second"
    most = load["max_concurrency"]
    lines = [
        f"{whole['kind']}: {whole['target']}",
        f"{load['num_prompts']} requests, {rate}"
        + (f", at most {most} at a time" if most else "")
        + (f"; medians of {load['runs']} runs" if load["runs"] > 1 else ""),
        "",
        f"{'completed':<26}{row['completed']:>12g}",
        f"{'failed':<26}{row['failed']:>12g}",
        f"{'duration':<26}{row['duration_s']:>12.2f} s",
        f"{'prompt tokens':<26}{row['input_tokens']:>12g}"
        + (f"   {row['cache_hit_rate']:.0%} cached" if row["cached_tokens"] else ""),
        f"{'generated tokens':<26}{row['output_tokens']:>12g}",
        f"{'requests':<26}{row['requests_per_s']:>12.2f} a second",
        f"{'prompt tokens':<26}{row['input_tokens_per_s']:>12.1f} a second",
        f"{'generated tokens':<26}{row['output_tokens_per_s']:>12.1f} a second",
        "",
        f"{'ms':<26}" + "".join(f"{name:>10}" for name in ("mean", "p50", "p90", "p95", "p99")),
    ]
    for key, name in (
        ("ttft_ms", "time to first token"),
        ("tpot_ms", "time per output token"),
        ("itl_ms", "between tokens"),
        ("e2e_ms", "whole answer"),
    ):
        values = "".join(f"{row[key][one]:>10.1f}" for one in ("mean", "p50", "p90", "p95", "p99"))
        lines.append(f"{name:<26}{values}")
    lines += [
        "",
        f"client: {here['cpu']}, {here['cores']} cores, load average {here['load_average']}",
        *(f"error: {error}" for error in whole["errors"]),
    ]
    return "\n".join(lines)


def show(whole: dict[str, Any], args: LoadArgs) -> None:
    """Print, and write where it was asked for."""
    text = json.dumps(whole, indent=2)
    if args.output_file:
        Path(args.output_file).write_text(text + "\n", encoding="utf-8")
    print(text if args.json else table(whole))
