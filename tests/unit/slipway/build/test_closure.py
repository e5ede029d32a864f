"""A lock must hold what its own wheels need."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipway.build import closure
from slipway.build import lock as locks
from slipway.build import matrix as matrices
from slipway.errors import LockError
from support.project import Project, lock_line, make_wheel


def check(
    project: Project,
    requires: list[str],
    others: dict[str, str],
    root: str = "a",
    theirs: tuple[str, ...] = (),
) -> None:
    """Lock wheel `a`, which needs `requires`, and `others`, which need `theirs`; check that."""
    folder = project.wheels.parent / "closure"
    wheels = [make_wheel(folder, "a", "1.0", {}, requires=requires)]
    wheels += [
        make_wheel(folder, name, version, {}, requires=theirs) for name, version in others.items()
    ]
    project.write("docker/locks/cpu.txt", "".join(map(lock_line, wheels)))
    matrix = matrices.load(project.root)
    variant = matrix.variant("cpu")
    lock = locks.load(project.root, variant)
    files: dict[str, Path] = {wheel.name.split("-")[0]: wheel for wheel in wheels}
    closure.check(lock, files, {"project": {"dependencies": [root]}}, matrix.engine, variant)


def test_what_is_complete_passes(project: Project) -> None:
    check(project, ["b>=1", "c; sys_platform == 'win32'", "d; extra == 'x'"], {"b": "1.5"})


def test_a_need_that_is_not_locked_is_named(project: Project) -> None:
    with pytest.raises(LockError, match=r"a==1.0 needs b>=1, and .* does not have it") as caught:
        check(project, ["b>=1"], {})
    assert caught.value.remedy == "slipway image lock cpu"


def test_a_need_in_another_version_is_named(project: Project) -> None:
    with pytest.raises(LockError, match=r"a==1.0 needs b>=2, and .* has b==1.5"):
        check(project, ["b>=2"], {"b": "1.5"})


def test_an_extra_that_is_asked_for_counts(project: Project) -> None:
    with pytest.raises(LockError, match="needs d"):
        check(project, ["d; extra == 'x'"], {}, root="a[x]")
    check(project, ["d; extra == 'x'"], {"d": "1"}, root="a[x]")


def test_packages_that_need_each_other_end(project: Project) -> None:
    check(project, ["b"], {"b": "1.0"}, theirs=("a", "b"))
