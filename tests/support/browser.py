"""Chromium from the system, driven by Playwright; axe-core from npm."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from support.npm import npm_package

if TYPE_CHECKING:
    from playwright.sync_api import Browser

AXE = "axe-core@4.14.1"
_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


@contextmanager
def chromium() -> Iterator[Browser]:
    """A headless Chromium; skips where there is none."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("chromium is not installed (apt-get install chromium)")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as run:
        browser = run.chromium.launch(executable_path=program, args=_FLAGS, headless=True)
        try:
            yield browser
        finally:
            browser.close()


def axe_source() -> str:
    """The text of axe-core; skips where npm cannot get it."""
    return (npm_package(AXE) / "axe.min.js").read_text(encoding="utf-8")
