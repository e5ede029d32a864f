"""What git is asked, and what is said where it cannot answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipway.build.git import Checkout, find_checkout
from slipway.errors import RepositoryError, ToolMissingError
from support.project import Project


def test_the_checkout_is_found_from_below(project: Project) -> None:
    assert find_checkout(project.root / "src/tiny/core").root == project.root


def test_a_folder_without_git_gets_advice(tmp_path: Path) -> None:
    with pytest.raises(RepositoryError, match="is not in a git checkout") as caught:
        find_checkout(tmp_path)
    assert "git init" in caught.value.remedy


def test_a_repository_without_a_commit_gets_advice(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path)
    checkout.run("init", "--quiet")
    with pytest.raises(RepositoryError, match="has no commit yet") as caught:
        checkout.commit()
    assert "git commit" in caught.value.remedy


def test_no_git_gets_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolMissingError, match="git is not installed"):
        Checkout(tmp_path).run("status")


def test_the_branch_is_gits_or_what_ci_says(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_REF_NAME", "from-ci")
    assert Checkout(project.root).branch() == "main"
    project.git("checkout", "--quiet", "--detach")
    checkout = Checkout(project.root)
    assert checkout.branch() == "from-ci"
    monkeypatch.delenv("GITHUB_REF_NAME")
    assert checkout.branch() == "detached"
    monkeypatch.setenv("SLIPWAY_BRANCH", "mine")
    assert checkout.branch() == "mine"


def test_dirty_is_what_git_does_not_ignore(project: Project) -> None:
    assert not Checkout(project.root).is_dirty()
    project.write("dist/x", "ignored")
    assert not Checkout(project.root).is_dirty()
    project.write("notes.txt", "untracked")
    assert Checkout(project.root).is_dirty()


def test_ancestry_is_known_or_said_to_be_unknown(project: Project) -> None:
    checkout = Checkout(project.root)
    first = checkout.commit()
    second = project.commit()
    assert checkout.is_ancestor(first, second) is True
    assert checkout.is_ancestor(second, first) is False
    assert checkout.is_ancestor("0" * 40, first) is None


def test_blobs_come_in_the_order_asked_for(project: Project) -> None:
    project.write("src/tiny/core/odd", "no newline at the end")
    project.commit()
    checkout = Checkout(project.root)
    entries = checkout.ls_tree("HEAD", recursive=True)[::-1]
    contents = list(checkout.blobs([entry.object_id for entry in entries]))
    for entry, data in zip(entries, contents, strict=True):
        assert data == (project.root / entry.path).read_bytes()
        assert entry.size == len(data)


def test_a_look_at_head_is_one_moment(project: Project) -> None:
    checkout = Checkout(project.root)
    before = checkout.head
    project.write("notes.txt", "untracked")
    project.commit()
    assert checkout.head == before
    assert Checkout(project.root).head != before


def test_names_of_branches_and_files_may_hold_anything(project: Project) -> None:
    project.git("checkout", "--quiet", "-b", "größe/大-x")
    project.write("line\nbreak.txt", "")
    checkout = Checkout(project.root)
    assert checkout.branch() == "größe/大-x"
    assert checkout.is_dirty()
