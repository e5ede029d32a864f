"""The plan of one push: for every variant its gate decision, its names and the commits to build."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slipway.build import matrix as matrices
from slipway.build import tags
from slipway.build.git import Checkout
from slipway.build.plan import COMMIT, Plan, load_and_decide
from slipway.build.remote import Remote
from slipway.build.run import STORE
from slipway.ci import history
from slipway.image.layout import LayoutStore
from slipway.image.reference import Reference
from slipway.image.registry import Registry, Repository


@dataclass(frozen=True)
class Row:
    """One variant of the matrix.

    Attributes:
        commits: to build, oldest first, joined by a space as a workflow hands them on.
    """

    variant: str
    builder: str
    plan: str
    why: str
    tag: str
    alias: str
    commits: str = ""

    def to_json(self) -> dict[str, Any]:
        """The row for a workflow's `matrix.include`."""
        return asdict(self)


@dataclass(frozen=True)
class PushPlan:
    """All rows that have something to build, and why nothing is where there is none."""

    rows: tuple[Row, ...]
    why_nothing: str = ""

    def matrix(self) -> dict[str, Any]:
        """The value of a workflow's `strategy.matrix`."""
        return {"include": [row.to_json() for row in self.rows]}


def row_of(plan: Plan, commits: tuple[str, ...] = ()) -> Row:
    """A build's plan as a row."""
    return Row(
        plan.variant.name,
        plan.variant.builder,
        plan.path,
        plan.why,
        plan.tag,
        plan.alias,
        " ".join(commits),
    )


def decide(
    checkout: Checkout,
    cache: Path,
    target: Reference,
    *,
    variant: str = "",
    full: bool = False,
    force: bool = False,
) -> PushPlan:
    """Plan a push.

    What needs no image is found first, so that such a push costs two requests.

    Args:
        variant: this row of the matrix alone.
        full: dependencies are made anew.
        force: build HEAD even where it has an image (a run that a person asked for).
    """
    matrix = matrices.load(checkout.root)
    store = LayoutStore(checkout.root / STORE)
    names = [matrix.variant(variant).name] if variant else matrix.in_ci
    repository = Registry(target.registry).repository(target.repository)
    branch, there = checkout.branch(), repository.tags()
    rows = []
    for name in names:
        suffix = suffix_of(matrix, name)
        alias = tags.alias(branch, ci=True, variant=name, default_variant=matrix.default_variant)
        published = published_commit(repository, alias) if alias in there else ""
        commits = history.pending(checkout, published, there, branch, suffix)
        if force and checkout.commit() not in commits:
            commits = (*commits, checkout.commit())
        if not commits:
            continue
        # As a push would: a base's layers stay where they are.
        remote = Remote(repository, store, publishing=True)
        plan = load_and_decide(checkout, name, store, cache, remote, full=full, ci=True)
        rows.append(row_of(plan, commits))
    if rows:
        return PushPlan(tuple(rows))
    return PushPlan((), "every commit since the last image changes nothing that an image holds")


def suffix_of(matrix: matrices.Matrix, variant: str) -> str:
    """What a variant's tags end with."""
    return "" if variant == matrix.default_variant else f"-{variant}"


def published_commit(repository: Repository, alias: str) -> str:
    """The commit of the image that an alias names, or ""."""
    import json

    found = repository.manifest(alias)
    if found is None:
        return ""
    return str((json.loads(found[1]).get("annotations") or {}).get(COMMIT, ""))
