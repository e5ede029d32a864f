"""Chromium from the system, driven by Playwright; axe-core from npm."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

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
    """The text of axe-core, fetched through npm once; skips where npm cannot get it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slipway" / "npm"
    script = cache / AXE / "axe.min.js"
    if not script.is_file():
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip("npm is not installed: no axe-core")
        script.parent.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            [npm, "pack", "--silent", AXE], cwd=script.parent, capture_output=True, text=True
        )
        if done.returncode != 0:
            pytest.skip(f"npm could not fetch {AXE}: {done.stderr.strip()[-200:]}")
        with tarfile.open(script.parent / done.stdout.split()[-1]) as archive:
            member = archive.extractfile("package/axe.min.js")
            assert member is not None
            script.write_bytes(member.read())
    return script.read_text(encoding="utf-8")
