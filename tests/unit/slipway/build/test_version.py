"""Versions come from tags; where there is none they are guesses, and say so."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from slipway.build.git import Checkout
from slipway.build.version import describe
from support.project import Project


def version_of(project: Project, *, dirty: bool = False) -> tuple[str, str]:
    found = describe(Checkout(project.root), dirty=dirty)
    return found.text.replace(project.git("rev-parse", "HEAD")[:9], "SHA"), found.guess


def test_on_a_tag_it_is_the_tags(project: Project) -> None:
    project.git("tag", "v1.2.3")
    assert version_of(project) == ("1.2.3", "")
    assert version_of(project, dirty=True) == ("1.2.3+dirty", "")


@pytest.mark.parametrize(
    ("tag", "expected"),
    [
        ("v1.2.3", "1.2.4.dev2+gSHA"),
        ("v2.0", "2.1.dev2+gSHA"),
        ("v1.0rc1", "1.0rc2.dev2+gSHA"),
    ],
)
def test_after_a_tag_it_is_on_the_way_to_the_next(
    project: Project, tag: str, expected: str
) -> None:
    project.git("tag", tag)
    project.commit()
    project.commit()
    assert version_of(project) == (expected, "")
    from packaging.version import Version

    assert Version(tag.removeprefix("v")) < Version(
        describe(Checkout(project.root), dirty=False).text
    )


def test_without_a_tag_it_is_a_guess(project: Project) -> None:
    text, why = version_of(project)
    assert text == "0.1.0.dev0+gSHA"
    assert "no version tag" in why
    assert version_of(project, dirty=True)[0] == "0.1.0.dev0+gSHA.dirty"


def test_a_tag_that_is_no_version_is_a_guess(project: Project) -> None:
    project.git("tag", "v2-final-really")
    text, why = version_of(project)
    assert text == "0.1.0.dev0+gSHA"
    assert "v2-final-really" in why


def test_a_shallow_clone_guesses_as_a_whole_one_without_tags_does(
    project: Project, tmp_path: Path
) -> None:
    project.commit()
    shallow = tmp_path / "shallow"
    url = f"file://{project.root}"
    subprocess.run(["git", "clone", "--quiet", "--depth=1", url, str(shallow)], check=True)
    found = describe(Checkout(shallow), dirty=False)
    assert found.text == describe(Checkout(project.root), dirty=False).text
    assert "git fetch --unshallow --tags" in found.guess
