"""Reference pages against the programs that they describe."""

from __future__ import annotations

import re
from pathlib import Path

from keel.router.metrics import Snapshot, render
from slipway.cookbook.reference import METRICS, metrics

ROOT = Path(__file__).parents[4]


def test_the_metrics_page_lists_what_the_router_has() -> None:
    live = render(Snapshot()).decode()
    heads = [line for line in live.splitlines() if re.match(r"# (HELP|TYPE) ", line)]
    assert (ROOT / METRICS["keel router"]).read_text().splitlines() == heads
    page = metrics(ROOT)
    for name in re.findall(r"# HELP (\S+)", live):
        assert f"| `{name}` |" in page
