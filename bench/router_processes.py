"""Whether `keel router --workers N` scales: requests a second and CPU per request for 1, 2, … N.

    python bench/router_processes.py [--processes 1 2] [--rounds 5] [--first-port 31480]

Nothing is pinned: router processes, two fake engines and two load generators share the machine's
cores, so the gain is bounded by what engines and load leave over. CPU per request is of the router
processes together, and shows what sharing costs; load is even if each process answered its part.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

from router import FAKES, Bench, children, cpu_seconds

REQUESTS = 12_000
CONNECTIONS = 32


class Unpinned(Bench):
    """Processes on any core."""

    def start(self, name: str, command: list[str], core: int) -> int:
        del core
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        return super().start(name, ["taskset", "-c", cores, *command], self._router_core)


def both_loads(port: int) -> float:
    """Requests a second of two load generators together."""
    command = [
        sys.executable,
        str(FAKES),
        "load",
        str(port),
        str(CONNECTIONS),
        str(REQUESTS),
        "json",
    ]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    found = [json.loads(process.communicate()[0]) for process in running]
    if any(one["errors"] for one in found):
        sys.exit(f"errors: {found}")
    return float(sum(one["rps"] for one in found))


def main() -> None:
    """As the module's docstring says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--first-port", type=int, default=31480)
    arguments = parser.parse_args()
    rates: dict[int, list[float]] = defaultdict(list)
    costs: dict[int, list[float]] = defaultdict(list)
    shares: dict[int, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        bench = Unpinned(stack, arguments.first_port, Path(folder))
        workers = bench.workers(0.0)
        routers = {
            count: bench.ours(workers, "--workers", str(count)) for count in arguments.processes
        }
        for round_ in range(arguments.rounds + 1):
            for count, (port, pid) in routers.items():
                before = {one: cpu_seconds(one) for one in [pid, *children(pid)]}
                rate = both_loads(port)
                spent = {one: cpu_seconds(one) - was for one, was in before.items()}
                if round_:
                    rates[count].append(rate)
                    costs[count].append(spent[pid] / (2 * REQUESTS) * 1e6)
                    shares[count] = sorted(spent[one] / spent[pid] for one in children(pid))
    first = arguments.processes[0]
    for count in arguments.processes:
        rate, cost = statistics.median(rates[count]), statistics.median(costs[count])
        gain = statistics.median(
            many / one for many, one in zip(rates[count], rates[first], strict=True)
        )
        part = ", ".join(f"{share:.2f}" for share in shares[count])
        print(
            f"{count} processes: {rate:8.0f} requests/s, {gain:.2f} of {first}'s in its round, "
            f"{cost:6.1f} us of CPU a request" + (f", shares {part}" if part else "")
        )


if __name__ == "__main__":
    main()
