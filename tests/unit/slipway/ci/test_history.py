"""Which commits still need an image."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipway.build.git import Checkout
from slipway.ci.history import ignored, pending, tags_of
from support.project import Project, make_project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return make_project(tmp_path)


def edit(project: Project, number: int, path: str = "src/tiny/core/work.py") -> str:
    project.write(path, f"VALUE = {number}\n")
    return project.commit(f"edit {number}")


def find(project: Project, published: str = "", there: tuple[str, ...] = ()) -> tuple[str, ...]:
    return pending(Checkout(project.root), published, there, "main", "")


def test_a_branch_without_an_image_begins_at_its_head(project: Project) -> None:
    edit(project, 2)
    head = edit(project, 3)
    assert find(project) == (head,)


def test_every_commit_since_the_published_one_is_built_oldest_first(project: Project) -> None:
    first = project.git("rev-parse", "HEAD")
    commits = tuple(edit(project, number) for number in (2, 3, 4))
    assert find(project, first) == commits
    assert find(project, commits[0]) == commits[1:]
    assert find(project, commits[-1]) == ()


def test_a_commit_that_has_an_image_is_left_out(project: Project) -> None:
    first = project.git("rev-parse", "HEAD")
    one, two = edit(project, 2), edit(project, 3)
    assert find(project, first, (f"main-{one[:9]}-ci-20260101-0000",)) == (two,)


def test_deploy_and_docs_alone_build_nothing_and_hide_no_earlier_commit(project: Project) -> None:
    first = project.git("rev-parse", "HEAD")
    edit(project, 1, "deploy/site/x.yml")
    assert find(project, first) == ()
    source = edit(project, 2)
    edit(project, 3, "docs/a/b.md")
    assert find(project, first) == (source,)


def test_a_forced_branch_begins_again_at_its_head(project: Project) -> None:
    first = project.git("rev-parse", "HEAD")
    published = edit(project, 2)
    project.git("reset", "--hard", "--quiet", first)
    head = edit(project, 3)
    assert find(project, published) == (head,)
    assert find(project, "f" * 40) == (head,)


def test_a_run_that_a_newer_one_overtook_still_builds_its_own_commit(project: Project) -> None:
    older, newer = edit(project, 2), edit(project, 3)
    project.git("checkout", "--quiet", older)
    assert find(project, newer) == (older,)
    assert find(project, newer, (f"main-{older[:9]}-ci-20260101-0000",)) == ()


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["deploy/a/b.yml", "docs/x.md", "README.md", ".gitea/workflows/x.yaml"], True),
        (["deploy/a", "src/a.py"], False),
        (["src/keel/README.md"], False),
        (["pyproject.toml"], False),
        ([], False),
    ],
)
def test_what_no_image_holds(paths: list[str], expected: bool) -> None:
    assert ignored(paths) is expected


def test_tags_of_a_variant_are_told_from_those_of_others() -> None:
    commit = "a" * 40
    stem = f"main-{commit[:9]}-ci-20260101-0000"
    there = [stem, f"{stem}-2", f"{stem}-cu130", f"{stem}-2-cu130", f"x{stem}", "main-latest"]
    assert tags_of(there, "main", commit, "") == [stem, f"{stem}-2"]
    assert tags_of(there, "main", commit, "-cu130") == [f"{stem}-2-cu130", f"{stem}-cu130"]
