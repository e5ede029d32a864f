"""What it costs that no .pyc travels in a layer: `import torch` in a fresh container, and again.

    python bench/bytecode.py IMAGE [--runs 5]

IMAGE is one of this machine's Docker Engine, e.g. after `slipway image export` and `docker load`.
The first import compiles what it reads; the second, a process of the same container, finds the
bytecode that the first left in /tmp. Medians; the first container of all is not counted, since it
also reads the image from the disk.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys

CODE = """
import subprocess, sys, time
for _ in range(2):
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    print(time.perf_counter() - start)
"""


def measure(image: str) -> list[float]:
    """Seconds of the first and the second import in a container of its own."""
    command = ["docker", "run", "--rm", "--read-only", "--tmpfs", "/tmp", "--network", "none"]
    command += ["--entrypoint", "python", image, "-c", CODE]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return [float(line) for line in done.stdout.split()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("image")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    measure(options.image)
    rounds = [measure(options.image) for _ in range(options.runs)]
    for label, column in (("first import", 0), ("second import", 1)):
        seconds = [times[column] for times in rounds]
        shown = [round(value, 2) for value in seconds]
        print(f"{label:<14} {statistics.median(seconds):.2f} s   {shown}")


if __name__ == "__main__":
    main()
