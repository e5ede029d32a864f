"""Whether `keel router` grows: 200,000 requests, 30 in 100 of which their client leaves.

    python bench/router_memory.py [--requests 200000] [--first-port 31460]

Half of those that are left have had no answer yet, half are within a stream; the rest is JSON and
50-chunk streams in turn. Prints the router's resident memory after each tenth and fails if it grew
by more than 2 MB from the second tenth to the last, or if a request failed, was not counted, or is
still in hand.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

from router import Bench

TENTHS = 10
ALLOWED_MB = 2.0


def resident_mb(pid: int) -> float:
    """Of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise ProcessLookupError(pid)


def metrics(port: int) -> dict[str, float]:
    """The router's own, by series."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return {
        name: float(value)
        for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")
    }


def main() -> None:
    """As the module's docstring says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=200_000)
    parser.add_argument("--first-port", type=int, default=31460)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        bench = Bench(stack, arguments.first_port, Path(folder))
        port, pid = bench.ours(bench.workers(0.0))
        sizes, sent, left, errors = [], 0.0, 0.0, 0.0
        for _ in range(TENTHS):
            share = arguments.requests // TENTHS // 32 * 32
            found = bench.load(port, 32, share, "mixed")
            sent, left = sent + share, left + found["left"]
            errors += found["errors"]
            time.sleep(0.5)
            sizes.append(resident_mb(pid))
            print(f"{int(sent):>8} requests  {sizes[-1]:7.1f} MB  {found['rps']:6.0f} a second")
            sys.stdout.flush()
        seen = metrics(port)
    counted = sum(n for name, n in seen.items() if "worker_requests_total" in name)
    cancelled = sum(
        n for name, n in seen.items() if 'outcome="cancelled"' in name and "total" in name
    )
    aborts = seen.get('keel_router_aborts_total{result="sent"}', 0.0)
    failed = seen.get('keel_router_aborts_total{result="failed"}', 0.0)
    grown = sizes[-1] - sizes[1]
    print(
        f"left {int(left)}, counted {int(counted)}, cancelled {int(cancelled)}, "
        f"aborts {int(aborts)} (failed {int(failed)}), errors {int(errors)}, "
        f"in hand {int(seen['keel_router_in_flight'])}, grown {grown:.2f} MB"
    )
    good = (
        counted == sent
        and cancelled == left
        and aborts <= cancelled
        and not (failed or errors or seen["keel_router_in_flight"])
        and grown <= ALLOWED_MB
    )
    print("holds" if good else "FAILS")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
