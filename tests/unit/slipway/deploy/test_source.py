"""A checkout's branch, commit and time, as reproducible archives need them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from slipway.deploy.source import read_source
from slipway.errors import RepositoryError


def commit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("GIT_COMMITTER_DATE", "2026-01-02T03:04:05Z")
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    monkeypatch.delenv("GITHUB_REF_NAME", raising=False)
    git = ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@t"]
    subprocess.run([*git, "init", "-q", "-b", "topic/x"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    return git


def test_the_branch_is_as_tags_have_it_and_the_time_is_the_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(tmp_path, monkeypatch)
    source = read_source(tmp_path)
    assert (source.branch, source.date) == ("topic-x", 1767323045)
    assert len(source.commit) == 40


def test_the_environment_decides_the_time_and_names_the_branch_that_ci_checked_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git = commit(tmp_path, monkeypatch)
    subprocess.run([*git, "checkout", "-q", "--detach"], check=True)
    assert read_source(tmp_path).branch == ""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "7")
    monkeypatch.setenv("GITHUB_REF_NAME", "main")
    source = read_source(tmp_path)
    assert (source.branch, source.date) == ("main", 7)


def test_without_a_commit_the_remedy_is_to_commit(tmp_path: Path) -> None:
    with pytest.raises(RepositoryError, match="git cannot read"):
        read_source(tmp_path)
