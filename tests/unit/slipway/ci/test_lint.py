"""Every difference of Gitea is caught where it stands, and our own workflows have none."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipway.ci.lint import lint, rules
from slipway.errors import ConfigError

ROOT = Path(__file__).parents[4]

# name of the rule -> (a workflow that breaks it, the line)
BROKEN = {
    "concurrency": ("concurrency: one\njobs: {}\n", 1),
    "permissions": ("jobs:\n  a:\n    permissions: {packages: write}\n", 3),
    "timeout-minutes": ("jobs:\n  a:\n    steps:\n    - run: x\n      timeout-minutes: 5\n", 5),
    "continue-on-error": ("jobs:\n  a:\n    continue-on-error: true\n", 3),
    "environment": ("jobs:\n  a:\n    environment: production\n", 3),
    "runs-on": ("jobs:\n  a:\n    runs-on:\n      group: big\n", 4),
    "run-name": ("run-name: x\njobs: {}\n", 1),
    "hash-files": ("jobs:\n  a:\n    env:\n      K: ${{ hashFiles('x') }}\n", 4),
    "artifacts": ("jobs:\n  a:\n    steps:\n    - uses: actions/upload-artifact@v4\n", 4),
    "cache": ("jobs:\n  a:\n    steps:\n    - uses: docker/build-push-action@v6\n", 4),
    "job-token": ("env:\n  T: ${{ secrets.GITHUB_TOKEN }}\njobs: {}\n", 2),
    "outside-action": ("jobs:\n  a:\n    steps:\n    - uses: docker/login-action@v3\n", 4),
    "checkout": ("jobs:\n  a:\n    steps:\n    - uses: actions/checkout@v4\n", 4),
    "paths-filter": ("on:\n  push:\n    paths-ignore: [deploy/**]\njobs: {}\n", 3),
    "tags-ignore": ("on:\n  push:\n    tags-ignore: [x]\njobs: {}\n", 3),
    "vars": ("env:\n  R: ${{ vars.R }}\njobs: {}\n", 2),
    "skipped-outputs": (
        "jobs:\n  a:\n    if: x\n  b:\n    if: always()\n    env:\n"
        "      V: ${{ needs.a.outputs.v }}\n",
        7,
    ),
}


def test_every_rule_has_a_case_here() -> None:
    assert {rule.name for rule in rules()} | {"skipped-outputs"} == set(BROKEN)


@pytest.mark.parametrize("name", BROKEN)
def test_a_difference_is_found_in_its_line(name: str, tmp_path: Path) -> None:
    text, line = BROKEN[name]
    path = tmp_path / "w.yaml"
    path.write_text(text)
    assert (name, line) in {(found.rule.name, found.line) for found in lint([path])}


def test_a_guarded_output_of_a_job_that_may_be_skipped_is_fine(tmp_path: Path) -> None:
    text = BROKEN["skipped-outputs"][0].replace("needs.a.out", "needs.a.result && needs.a.out")
    path = tmp_path / "w.yaml"
    path.write_text(text)
    assert lint([path]) == []


def test_our_own_workflows_rely_on_nothing_that_gitea_lacks() -> None:
    paths = sorted((ROOT / ".gitea/workflows").glob("*.yaml"))
    assert len(paths) == 4
    assert [str(found) for found in lint(paths) if found.rule.level == "error"] == []


def test_every_rule_names_its_source() -> None:
    assert all(rule.source and rule.says for rule in rules())


@pytest.mark.parametrize("text", ["a: [", "- x\n", "name: x\n"])
def test_what_is_no_workflow_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError):
        lint([path])
