"""What the workflow costs around the build itself: medians of pushes run by act.

Usage: PYTHONPATH=src:tests python bench/ci_overhead.py [ROUNDS]

Each round pushes an edit (fast path) and then a change of docs alone (nothing is built), from fresh
clones, against docker-registry on loopback with a password. `overhead` is the push's wall clock
without what `slipway image build --push` reports as its own seconds.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from support.pushes import Line, line


def timed(at: Line) -> tuple[float, str]:
    begin = time.perf_counter()
    run = at.push()
    seconds = time.perf_counter() - begin
    if run.code:
        raise SystemExit(run.log)
    return seconds, run.log


def built_seconds(log: str) -> float:
    lines = [text.partition("| ")[2] for text in log.splitlines() if '"bytes_pushed"' in text]
    return float(json.loads(lines[-1])["seconds"])


def main(rounds: int) -> None:
    walls, overheads, idle = [], [], []
    with tempfile.TemporaryDirectory() as folder, line(Path(folder)) as at:
        timed(at)  # the first push is full
        for number in range(rounds):
            at.edit(number + 10)
            seconds, log = timed(at)
            walls.append(seconds)
            overheads.append(seconds - built_seconds(log))
            at.project.write("docs/note.md", f"{number}\n")
            at.project.commit("docs")
            seconds, log = timed(at)
            if "Nothing was built" not in log:
                raise SystemExit(f"something was built:\n{log}")
            idle.append(seconds)
    for name, values in (
        ("fast push, wall clock", walls),
        ("  of it around the build (goal: under 3 s)", overheads),
        ("push of docs alone (goal: under 2 s)", idle),
    ):
        runs = " ".join(f"{value:.2f}" for value in values)
        print(f"{name:<45} median {statistics.median(values):.2f} s   ({runs})")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
