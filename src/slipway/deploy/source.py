"""What a pack needs to know of the checkout: its branch, its commit, and when that was made."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from slipway.errors import RepositoryError


@dataclass(frozen=True)
class Source:
    """A checkout.

    Attributes:
        branch: as it stands in image tags; "" where no branch is checked out.
        commit: forty hex digits.
        date: seconds since 1970 that reproducible files carry: SOURCE_DATE_EPOCH, or the
            commit's.
    """

    branch: str
    commit: str
    date: int


def read_source(root: Path) -> Source:
    """The checkout at `root`.

    Raises:
        RepositoryError: it is no git checkout, or has no commit.
    """
    words = ["git", "-C", str(root), "log", "-1", "--format=%H %ct %D"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise RepositoryError("git is not installed", "apt-get install git") from None
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        raise RepositoryError(f"git cannot read {root}: {why}", "commit once, then run it again")
    commit, seconds, *rest = done.stdout.strip().split(" ", 2)
    match = re.search(r"HEAD -> ([^,]+)", " ".join(rest))
    branch = match[1] if match else os.environ.get("GITHUB_REF_NAME", "")
    date = os.environ.get("SOURCE_DATE_EPOCH") or seconds
    return Source(re.sub(r"[^A-Za-z0-9_.]+", "-", branch), commit, int(date))
