"""`keel router` against SGLang's Rust router: same fake engines, same run, a core for the router.

    python bench/router.py --peer-python PATH [--rounds 5] [--json FILE] [--first-port 31420]

PATH is the Python of a virtual environment with `sglang-router` (0.3.2); without it only ours runs.
The router is pinned to the last core that this process may use, workers and load to the first. Each
round measures every case directly at a worker, through ours and through the peer, in turn; what is
compared is compared inside a round, and the median of the rounds counts. Both route round robin
over two workers. Ours runs with everything on: minted ids, a sampling contract, breaker, health
checks, janitor, metrics, access log (to a file).
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
import urllib.request
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parent / "src"
FAKES = HERE / "router_fakes.py"
TICKS = os.sysconf("SC_CLK_TCK")
# name -> (connections, requests, kind, worker's delay between chunks)
CASES = {
    "json c=32": (32, 16_000, "json", 0.0),
    "json c=1": (1, 3_000, "json", 0.0),
    "stream c=32": (32, 2_400, "stream", 0.0),
    "stream 64 x 10 ms": (64, 192, "stream", 0.01),
}


class Bench:
    """Processes on their cores, ended with the bench."""

    def __init__(self, stack: ExitStack, port: int, folder: Path) -> None:
        cores = sorted(os.sched_getaffinity(0))
        self._load_core, self._router_core = cores[0], cores[-1]
        self._stack, self._folder = stack, folder
        self.port = port

    def start(self, name: str, command: list[str], core: int) -> int:
        log = (self._folder / f"{name}.log").open("wb")
        process = subprocess.Popen(
            ["taskset", "-c", str(core), *command],
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
        )
        self._stack.callback(process.wait)
        self._stack.callback(process.terminate)
        return process.pid

    def workers(self, delay: float) -> list[int]:
        ports = [self.port, self.port + 1]
        self.port += 2
        for port in ports:
            command = [sys.executable, str(FAKES), "worker", str(port), str(delay)]
            self.start(f"worker-{port}", command, self._load_core)
        for port in ports:
            ready(port, "/health")
        return ports

    def ours(self, workers: list[int], *flags: str) -> tuple[int, int]:
        port, self.port = self.port, self.port + 1
        command = [sys.executable, "-m", "keel", "router", "--port", str(port)]
        command += ["--worker-urls", *urls(workers), "--policy", "round_robin", *flags]
        command += ["--sampling-defaults", '{"temperature":0.7}']
        pid = self.start(f"ours-{port}", command, self._router_core)
        ready(port, "/ready")
        return port, pid

    def peer(self, python: str, workers: list[int]) -> tuple[int, int]:
        port, self.port = self.port, self.port + 2
        command = [python, "-m", "sglang_router.launch_router", "--port", str(port)]
        command += ["--worker-urls", *urls(workers), "--policy", "round_robin"]
        command += ["--prometheus-port", str(port + 1), "--log-level", "warn"]
        pid = self.start(f"peer-{port}", command, self._router_core)
        ready(port, "/readiness")
        return port, pid

    def load(self, port: int, connections: int, requests: int, kind: str) -> dict[str, float]:
        command = ["taskset", "-c", str(self._load_core), sys.executable, str(FAKES), "load"]
        command += [str(port), str(connections), str(requests), kind]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return dict(json.loads(done.stdout))


def urls(ports: list[int]) -> list[str]:
    return [f"http://127.0.0.1:{port}" for port in ports]


def ready(port: int, path: str) -> None:
    """Wait until something answers 200 there."""
    deadline = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5):
                return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and its children so far."""
    total = 0.0
    for one in [pid, *children(pid)]:
        words = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        total += (int(words[11]) + int(words[12])) / TICKS
    return total


def children(pid: int) -> list[int]:
    """Process ids below a process."""
    found = []
    for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found += [int(word), *children(int(word))]
    return found


Samples = dict[tuple[str, str], list[dict[str, float]]]


def measure(arguments: argparse.Namespace, bench: Bench) -> Samples:
    """All rounds of all cases."""
    samples: Samples = defaultdict(list)
    targets: dict[float, list[tuple[str, int, int]]] = {}
    for delay in {case[3] for case in CASES.values()}:
        workers = bench.workers(delay)
        targets[delay] = [("direct", workers[0], 0), ("keel", *bench.ours(workers))]
        if arguments.peer_python:
            targets[delay].append(("peer", *bench.peer(arguments.peer_python, workers)))
    for round_ in range(arguments.rounds + 1):
        for case, (connections, requests, kind, delay) in CASES.items():
            for name, port, pid in targets[delay]:
                before = cpu_seconds(pid) if pid else 0.0
                found = bench.load(port, connections, requests, kind)
                if pid:
                    done = requests // connections * connections
                    found["cpu_us"] = (cpu_seconds(pid) - before) / done * 1e6
                if round_:  # the first one warms up
                    samples[case, name].append(found)
        print(f"round {round_} of {arguments.rounds}", file=sys.stderr)
    return samples


def median(samples: Samples, case: str, name: str, key: str) -> float:
    return statistics.median(one[key] for one in samples[case, name])


def report(samples: Samples) -> bool:
    """Print medians, and each limit with whether it holds; whether all do.

    A ratio or difference is taken inside each round, then its median over rounds: the machine is
    shared, and only what was measured side by side can be compared.
    """
    keys = ("rps", "first_p50", "first_p99", "p50", "p99", "cpu_us", "errors")
    print(f"{'case':<20}{'':<8}" + "".join(f"{key:>11}" for key in keys))
    for case, name in samples:
        row = [median(samples, case, name, k) if k in samples[case, name][0] else 0 for k in keys]
        print(f"{case:<20}{name:<8}" + "".join(f"{value:>11.2f}" for value in row))
    one, many, burst, slow = CASES

    def over_direct(case: str, name: str, key: str) -> list[float]:
        pairs = zip(samples[case, name], samples[case, "direct"], strict=True)
        return [through[key] - direct[key] for through, direct in pairs]

    checks = [
        (
            f"64 streams, first token over direct, {text}, ms",
            over_direct(slow, "keel", key),
            "<=",
            most,
        )
        for text, key, most in (("median", "first_p50", 3.0), ("p99", "first_p99", 15.0))
    ]
    if (one, "peer") in samples:

        def ratio(case: str, key: str) -> list[float]:
            pairs = zip(samples[case, "keel"], samples[case, "peer"], strict=True)
            return [ours[key] / theirs[key] for ours, theirs in pairs]

        added = zip(over_direct(many, "keel", "p50"), over_direct(many, "peer", "p50"), strict=True)
        checks += [
            ("JSON c=32, requests/s, of the peer's", ratio(one, "rps"), ">=", 1.3),
            ("JSON c=32, p99, of the peer's", ratio(one, "p99"), "<=", 1.0),
            ("JSON c=1, added median, of the peer's", [a / b for a, b in added], "<=", 0.8),
            ("streams c=32, requests/s, of the peer's", ratio(burst, "rps"), ">=", 1.3),
            ("CPU per JSON request, of the peer's", ratio(one, "cpu_us"), "<=", 1.0),
            ("CPU per burst stream, of the peer's", ratio(burst, "cpu_us"), "<=", 1.0),
            ("CPU per slow stream's chunk, of the peer's", ratio(slow, "cpu_us"), "<=", 1.0),
        ]
        for text, key in (("median", "first_p50"), ("p99", "first_p99")):
            late = statistics.median(over_direct(slow, "peer", key))
            print(f"peer: 64 streams, first token over direct, {text}: {late:.2f} ms")
    print()
    good = True
    for text, values, relation, limit in checks:
        value = statistics.median(values)
        holds = value >= limit if relation == ">=" else value <= limit
        good = good and holds
        rounds = " ".join(f"{one_round:.2f}" for one_round in values)
        verdict = "holds" if holds else "FAILS"
        print(f"{verdict:<7}{text:<50}{value:8.2f} {relation} {limit}  [{rounds}]")
    errors = sum(found["errors"] for rounds in samples.values() for found in rounds)
    print(f"{'holds' if not errors else 'FAILS':<7}{'errors':<50}{errors:8.0f} <= 0")
    print(f"load of the machine over the last minutes: {os.getloadavg()}")
    return good and not errors


def main() -> None:
    """As the module's docstring says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer-python")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--first-port", type=int, default=31420)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        samples = measure(arguments, Bench(stack, arguments.first_port, Path(folder)))
    good = report(samples)
    if arguments.json:
        named = {f"{case} {name}": found for (case, name), found in samples.items()}
        arguments.json.write_text(json.dumps(named, indent=1))
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
