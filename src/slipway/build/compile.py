"""Lock files are written by pip-compile, for the variant's Python, with a hash for every file."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from slipway.build import lock as locks
from slipway.build.matrix import Engine, Variant
from slipway.errors import LockError, ToolMissingError, UsageError


def write_lock(root: Path, engine: Engine, variant: Variant, say: Callable[[str], None]) -> None:
    """Resolve the engine's dependencies and write the variant's lock file.

    What the lock already pins stays as long as it fits. The file names no index: where packages
    come from is pip's configuration.

    Raises:
        UsageError: the variant has no lock.
        LockError: pip-compile could not resolve them, or the result is not fit for the variant.
        ToolMissingError: pip-tools is not installed, or this Python is not the variant's.
    """
    if variant.lock is None:
        raise UsageError(
            f"the variant {variant.name} has no lock: its base has the dependencies",
            "give it one in docker/matrix.toml",
        )
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if here != variant.python:
        raise ToolMissingError(
            f"the lock of {variant.name} is for Python {variant.python}, and this is {here}",
            f"run it with python{variant.python}",
        )
    project = locks.read_project(root / engine.pyproject)
    with tempfile.TemporaryDirectory(prefix="slipway-lock-") as scratch:
        request = Path(scratch, "engine.in")
        wanted = [
            text
            for text in locks.requirements(project, engine.extra)
            if locks.normalise(locks.parse_requirement(text, engine.pyproject).name)
            not in variant.provided
        ]
        lines = [*wanted, *variant.constraints]
        request.write_text("\n".join(lines) + "\n")
        result = Path(scratch, "lock.txt")
        old = root / variant.lock
        if old.exists():
            result.write_bytes(old.read_bytes())
        command = [sys.executable, "-m", "piptools", "compile", "--quiet", "--generate-hashes"]
        command += ["--strip-extras", "--allow-unsafe", "--no-header", "--no-annotate"]
        command += ["--no-emit-index-url", "--no-emit-find-links", "--no-emit-trusted-host"]
        command += ["--output-file", str(result), str(request)]
        say(f"pip-compile for {variant.name}, Python {variant.python}")
        done = subprocess.run(command, capture_output=True, text=True, cwd=scratch)
        if done.returncode:
            if "No module named piptools" in done.stderr:
                raise ToolMissingError("pip-tools is not installed", "pip install pip-tools")
            said = [line for line in done.stderr.strip().splitlines() if line.strip()]
            raise LockError(f"pip-compile failed: {said[-1] if said else done.returncode}")
        header = (
            f"# Locked for the {variant.name} image, Python {variant.python}, by "
            f"`slipway image lock {variant.name}`.\n"
        )
        body = result.read_text()
        kept = "".join(line for line in body.splitlines(True) if not line.startswith("#"))
        fresh_lock = Path(f"{variant.lock}.new")
        fresh = replace(variant, lock=fresh_lock)
        path = root / fresh_lock
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.write_text(header + kept)
            locks.check(locks.load(root, fresh), project, engine, fresh)
            os.replace(path, old)
        finally:
            path.unlink(missing_ok=True)
