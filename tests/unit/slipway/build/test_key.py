"""The key moves with what decides the dependencies, and with nothing else."""

from __future__ import annotations

import pytest

from slipway.build import key as keys
from slipway.build import lock as locks
from slipway.build.matrix import load
from support.project import MATRIX, PYPROJECT, Project, lock_line, make_wheel

BASE = "sha256:" + "b" * 64


def compute(project: Project, base: str = BASE) -> keys.DependencyKey:
    matrix = load(project.root)
    variant = matrix.variant("cpu")
    lock = locks.load(project.root, variant)
    table = locks.read_project(project.root / matrix.engine.pyproject)
    return keys.compute(table, matrix.engine, variant, lock, base)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("pyproject.toml", f"# a comment\n{PYPROJECT}"),
        ("pyproject.toml", PYPROJECT.replace('dynamic = ["version"]', 'version = "9"')),
        ("pyproject.toml", f"{PYPROJECT}\n[tool.ruff]\nline-length = 80\n"),
        ("pyproject.toml", PYPROJECT + '[dependency-groups]\ndev = ["x"]\n'),
        ("docker/matrix.toml", f"# a comment\n{MATRIX}"),
        ("src/tiny/core/work.py", "VALUE = 2\n"),
    ],
)
def test_comments_version_and_source_change_nothing(project: Project, path: str, text: str) -> None:
    before = compute(project).value
    project.write(path, text)
    assert compute(project).value == before


def test_a_comment_or_another_order_in_the_lock_changes_nothing(project: Project) -> None:
    before = compute(project).value
    path = project.root / "docker/locks/cpu.txt"
    path.write_text("# by hand\n" + "".join(sorted(path.read_text().splitlines(True))))
    assert compute(project).value == before


@pytest.mark.parametrize(
    ("path", "old", "new", "clause"),
    [
        ("pyproject.toml", '"big>=2"', '"big>=2.1"', "dependencies -big>=2, +big>=2.1"),
        ("pyproject.toml", "tiny.cli:main", "tiny.cli:run", "scripts -tiny = tiny.cli:main"),
        ("pyproject.toml", "setuptools>=77", "setuptools>=78", "build-system"),
        ("docker/matrix.toml", '"linux/amd64"', '"linux/arm64"', "platform"),
        ("docker/matrix.toml", 'python = "3.11"', 'python = "3.12"', "python: 3.11 -> 3.12"),
        ("docker/matrix.toml", 'own-layer = ["big"]', "own-layer = []", "own-layer -big"),
        ("docker/matrix.toml", '"/opt/tiny/venv"', '"/opt/venv"', "roots"),
        ("docker/matrix.toml", 'builder = "assemble"', 'builder = "buildx"', "builder"),
    ],
)
def test_what_decides_the_dependencies_changes_it_and_is_named(
    project: Project, path: str, old: str, new: str, clause: str
) -> None:
    before = compute(project)
    project.write(path, (project.root / path).read_text().replace(old, new, 1))
    after = compute(project)
    assert after.value != before.value
    [said] = keys.explain(before.inputs, after.inputs)
    assert clause in said


def test_the_base_changes_it(project: Project) -> None:
    after = compute(project, "sha256:" + "c" * 64)
    assert keys.explain(compute(project).inputs, after.inputs) == [
        "base bbbbbbbbbbbb -> cccccccccccc"
    ]


def test_packages_of_the_lock_are_named(project: Project) -> None:
    before = compute(project)
    more = make_wheel(project.wheels, "more", "1.0", {})
    small = make_wheel(project.wheels, "small", "1.1", {})
    lines = [f"big==2.5 --hash=sha256:{'0' * 64}\n", lock_line(more), lock_line(small)]
    project.write("docker/locks/cpu.txt", "".join(lines))
    assert keys.explain(before.inputs, compute(project).inputs) == [
        "lock big 2.5 with other hashes",
        "lock +more 1.0",
        "lock small 1.0 -> 1.1",
    ]
