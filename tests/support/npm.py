"""Packages from npm, fetched once."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from support.tars import extract


def npm_package(name: str) -> Path:
    """The unpacked folder of `package@version`; skips where npm cannot get it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slipway" / "npm"
    folder = cache / name / "package"
    if not folder.is_dir():
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip(f"npm is not installed: no {name}")
        folder.parent.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            [npm, "pack", "--silent", name], cwd=folder.parent, capture_output=True, text=True
        )
        if done.returncode != 0:
            pytest.skip(f"npm could not fetch {name}: {done.stderr.strip()[-200:]}")
        with tarfile.open(folder.parent / done.stdout.split()[-1]) as archive:
            extract(archive, folder.parent)
    return folder
