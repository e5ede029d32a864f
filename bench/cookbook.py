"""Measure what the cookbook promises: build time, clicks, page sizes, requests.

    python bench/cookbook.py [--runs 5] [--json FILE]

The build is a whole process. A click is measured in Chromium from the event to the next frame after
the panel has changed, over every option of every recipe's first 200 reachable choices.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from slipway.cookbook.generate import reachable
from slipway.cookbook.load import load_pages

ROOT = Path(__file__).resolve().parent.parent
CLICKS = """async (choices) => {
  const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
  const times = { script: [], frame: [] };
  for (const wanted of choices) {
    for (const [name, value] of Object.entries(wanted)) {
      const input = document.querySelector(`.choices input[name="${name}"][value="${value}"]`);
      if (input.checked || input.disabled) continue;
      const start = performance.now();
      input.click();
      times.script.push(performance.now() - start);
      await frame();
      times.frame.push(performance.now() - start);
    }
  }
  return times;
}"""


def spread(values: list[float]) -> dict[str, float]:
    """Median, 99th percentile and the worst."""
    ordered = sorted(values)
    return {
        "median": statistics.median(ordered),
        "p99": ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)],
        "max": ordered[-1],
    }


def build(folder: Path) -> float:
    """Seconds of one `slipway cookbook build`."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "slipway", "cookbook", "build", "--output", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return time.perf_counter() - start


def in_browser(folder: Path) -> dict[str, Any]:
    """Click times in ms, the heaviest page in bytes, and requests to other places."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium")
    if program is None:
        sys.exit("chromium is not installed")
    script: list[float] = []
    frame: list[float] = []
    sizes: dict[str, int] = {}
    foreign: list[str] = []
    with sync_playwright() as run:
        browser = run.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu"], headless=True
        )
        for path in sorted(folder.rglob("*.html")):
            page = browser.new_page()
            asked: list[str] = []
            page.on("request", lambda request, asked=asked: asked.append(request.url))
            page.goto(f"file://{path}")
            page.locator("#search").focus()
            page.wait_for_function("window.slipwayIndex !== undefined")
            foreign += [url for url in asked if not url.startswith(f"file://{folder}/")]
            files = {url.removeprefix("file://").split("#")[0] for url in asked}
            name = str(path.relative_to(folder))
            sizes[name] = sum(Path(one).stat().st_size for one in files)
            if name.startswith("models/"):
                recipe = load_pages(ROOT)[path.stem].recipe
                choices = [one for _, one in zip(range(200), reachable(recipe), strict=False)]
                times = page.evaluate(CLICKS, choices)
                script += times["script"]
                frame += times["frame"]
            page.close()
        browser.close()
    heaviest = max(sizes, key=lambda name: sizes[name])
    return {
        "clicks": len(script),
        "click_script_ms": spread(script),
        "click_to_frame_ms": spread(frame),
        "pages": len(sizes),
        "heaviest_page": [heaviest, sizes[heaviest]],
        "requests_elsewhere": len(foreign),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cookbook-bench-") as name:
        folder = Path(name) / "site"
        builds = [build(folder) for _ in range(options.runs)]
        found = {
            "build_s": spread(builds),
            **in_browser(folder),
        }
    for key, value in found.items():
        if isinstance(value, dict):
            print(f"{key:<20}", "  ".join(f"{name} {one:.2f}" for name, one in value.items()))
        else:
            print(f"{key:<20}{value}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
