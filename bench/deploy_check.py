"""How long `slipway deploy check` takes for a folder of Compose files, beside Compose's own check.

    /work/tools/quiet python bench/deploy_check.py [FILE…]

The whole process is timed, interpreter and imports included. The peer is `compose config -q`,
which reads one file a call and sees neither commands nor GPUs.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from slipway.deploy.docker import compose_command
from slipway.errors import SlipwayError

ROOT = Path(__file__).resolve().parents[1]
RUNS = 7


def seconds(words: Sequence[str]) -> float:
    """Wall time of one process, whatever it answers."""
    environment = {**os.environ, "SLIPWAY_IMAGE": "x@sha256:" + "0" * 64, "MODEL_DIR": "/srv"}
    began = time.perf_counter()
    subprocess.run(words, capture_output=True, check=False, env=environment)
    return time.perf_counter() - began


def main() -> None:
    files = [Path(word) for word in sys.argv[1:]] or sorted(ROOT.glob("deploy/*/dockerserve-*.yml"))
    names = [str(path) for path in files]
    ours = [sys.executable, "-m", "slipway", "deploy", "check", "--json", *names]
    try:
        peer = compose_command()
    except SlipwayError as error:
        print(f"no peer: {error.what}")
        peer = []
    measured: dict[str, list[float]] = {"slipway deploy check": [], "docker compose config -q": []}
    for _ in range(RUNS):
        measured["slipway deploy check"].append(seconds(ours))
        if peer:
            each = [seconds([*peer, "-f", name, "config", "-q"]) for name in names]
            measured["docker compose config -q"].append(sum(each))
    print(f"{len(files)} files, median of {RUNS} (least to most), {os.cpu_count()} cores")
    for what, times in measured.items():
        if times:
            middle = statistics.median(times)
            print(f"{what:26}{middle:7.2f} s   ({min(times):.2f} to {max(times):.2f})")


if __name__ == "__main__":
    main()
