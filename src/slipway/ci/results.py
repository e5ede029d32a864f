"""What a run has published, read back from the registry by the jobs that come after the builds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from slipway.build.git import Checkout
from slipway.build.matrix import Matrix
from slipway.ci import history, record
from slipway.ci.plan import suffix_of
from slipway.image.registry import Repository


@dataclass(frozen=True)
class Result:
    """One commit of one variant; `digest` is "" where it has no image."""

    variant: str
    commit: str
    plan: str
    why: str
    tag: str = ""
    digest: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


def collect(
    checkout: Checkout,
    matrix: Matrix,
    repository: Repository,
    rows: Iterable[Mapping[str, str]],
    run_id: str,
) -> list[Result]:
    """The images of a plan's rows (`Row.to_json`), as the registry has them now."""
    branch = checkout.branch()
    rows = list(rows)
    there = repository.tags() if rows else []
    results = []
    for row in rows:
        suffix = suffix_of(matrix, row["variant"])
        for commit in row["commits"].split():
            found = history.tags_of(there, branch, commit, suffix)
            image = repository.resolve(found[-1]) if found else None
            facts = record.read(repository, image.digest, run_id) if image else {}
            results.append(
                Result(
                    row["variant"],
                    commit,
                    str(facts.get("plan", row["plan"])),
                    str(facts.get("why", row["why"])),
                    found[-1] if image else "",
                    image.digest if image else "",
                    facts,
                )
            )
    return results
