"""Builds the commits of one variant that still need an image, oldest first, and pushes each."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipway.build import run
from slipway.build.git import Checkout
from slipway.build.run import Built
from slipway.ci import record
from slipway.errors import RepositoryError, SlipwayError
from slipway.image.reference import Reference
from slipway.image.registry import Registry


@dataclass(frozen=True)
class Outcome:
    """What became of one commit: an image, or the reason why there is none."""

    commit: str
    built: Built | None
    error: SlipwayError | None = None


def build(
    checkout: Checkout,
    variant: str,
    commits: Iterable[str],
    cache: Path,
    target: Reference,
    *,
    full: bool = False,
    run_id: str = "",
    say: Callable[[str], None],
) -> list[Outcome]:
    """Build and push each commit; one that cannot be built stops no later one.

    The alias moves with every commit. A run that is ended at any point thus leaves it at the last
    commit that has an image, and the next run continues from there.

    Args:
        full: make the dependencies of HEAD anew; those before it take what there is.
        run_id: written into each image's record, by which later jobs find it.
    """
    head = checkout.commit()
    outcomes = []
    for commit in commits:
        say(f"commit {commit[:9]}")
        try:
            with _tree(checkout, commit) as root:
                built = run.build(
                    root,
                    variant,
                    checkout.root / run.STORE,
                    cache,
                    full=full and commit == head,
                    target=target,
                    push=True,
                    say=say,
                )
            repository = Registry(target.registry).repository(target.repository)
            record.write(repository, built.image.descriptor, facts(built, run_id))
        except SlipwayError as error:
            if commit == head:
                raise
            say(f"commit {commit[:9]} has no image: {error.what}")
            outcomes.append(Outcome(commit, None, error))
        else:
            outcomes.append(Outcome(commit, built))
    return outcomes


def facts(built: Built, run_id: str) -> dict[str, Any]:
    """What a summary shows of a build."""
    value = built.to_json()
    names = ("variant", "commit", "plan", "why", "digest", "seconds", "bytes_pushed", "tag")
    return {"run": run_id, **{name: value[name] for name in names if name in value}}


@contextmanager
def _tree(checkout: Checkout, commit: str) -> Iterator[Path]:
    """A working tree of a commit: the checkout itself, or one beside it that is removed again.

    Raises:
        RepositoryError: the commit is not known here.
    """
    if commit == checkout.commit():
        yield checkout.root
        return
    with tempfile.TemporaryDirectory(prefix="slipway-commit-") as scratch:
        root = Path(scratch, "tree")
        try:
            checkout.run("worktree", "add", "--quiet", "--detach", str(root), commit)
            yield root
        finally:
            try:
                checkout.run("worktree", "remove", "--force", str(root))
            except RepositoryError:
                checkout.run("worktree", "prune")
