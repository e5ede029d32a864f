"""Times `make image` as a stranger meets it: fresh clone, nothing changed, one engine file edited.

    python bench/make_image.py [--runs 5] [--cold] [--json FILE]

Clones this repository's HEAD into a temporary folder and runs make there as whole processes. The
set-up (virtual environment, release tool, base) is timed apart from the build. `--cold` gives the
run an empty cache folder, so that wheels are fetched and the base is made anew; without it the
machine's own cache is used.
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
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
EDITED = Path("src/keel/errors.py")


def timed(command: list[str], folder: Path, env: dict[str, str]) -> float:
    """Seconds that `command` took; its output goes to stderr where it fails."""
    start = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    seconds = time.perf_counter() - start
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return seconds


def describe(samples: list[float]) -> dict[str, float | list[float]]:
    """Median and all samples, in seconds."""
    return {
        "median": round(statistics.median(samples), 3),
        "runs": [round(sample, 3) for sample in samples],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    with tempfile.TemporaryDirectory(prefix="slipway-bench-") as name:
        clone = Path(name, "clone")
        subprocess.run(["git", "clone", "--quiet", str(REPOSITORY), str(clone)], check=True)
        env = {**os.environ, "SLIPWAY_REGISTRY": ""}
        if options.cold:
            env["SLIPWAY_CACHE"] = str(Path(name, "cache"))
        rows: dict[str, dict[str, float | list[float]]] = {}
        rows["set-up (.venv, release tool, base)"] = describe(
            [timed(["make", ".venv/.release"], clone, env)]
        )
        rows["make image, fresh clone (full)"] = describe([timed(["make", "image"], clone, env)])
        rows["make image, nothing changed"] = describe(
            [timed(["make", "image"], clone, env) for _ in range(options.runs)]
        )
        edited: list[float] = []
        for number in range(options.runs):
            with (clone / EDITED).open("a") as file:
                file.write(f"# {number}\n")
            edited.append(timed(["make", "image"], clone, env))
        rows["make image, one engine file edited"] = describe(edited)

    width = max(map(len, rows))
    for row, value in rows.items():
        print(f"{row:<{width}}  {value['median']:>8} s   {value['runs']}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
