"""The table that a person reads after a push."""

from __future__ import annotations

from slipway.ci.results import Result
from slipway.ci.summary import markdown


def test_rows_archives_and_what_has_no_image() -> None:
    facts = {"bytes_pushed": 2_500_000, "seconds": 1.25}
    good = Result("cpu", "a" * 40, "fast", "x | y", "main-a-ci", f"sha256:{'b' * 64}", facts)
    bad = Result("cpu", "c" * 40, "full", "big 1 -> 2")
    text = markdown([good, bad], ["reg/team/keel-deploy:one", "https://reg/one"], "reg/team/keel")
    rows = [line for line in text.splitlines() if line.startswith("| cpu")]
    assert r"x \| y" in rows[0]
    assert "| 2.50 MB | 1.25 |" in rows[0]
    assert "**no image**" in rows[1]
    assert "- `reg/team/keel-deploy:one`" in text
    assert "- <https://reg/one>" in text


def test_nothing_built_says_why() -> None:
    assert "Nothing was built: only docs." in markdown([], [], "reg/team/keel", "only docs")
