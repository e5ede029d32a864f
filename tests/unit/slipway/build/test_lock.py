"""A lock is pinned, hashed, for the variant's platform, and what the project and matrix ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slipway.build import lock as locks
from slipway.build import matrix as matrices
from slipway.build.matrix import Matrix, Variant
from slipway.errors import ConfigError, LockError
from support.project import Project

HASH = f"--hash=sha256:{'0' * 64}"


@pytest.fixture
def matrix(project: Project) -> Matrix:
    return matrices.load(project.root)


@pytest.fixture
def variant(matrix: Matrix) -> Variant:
    return matrix.variant("cpu")


def load(project: Project, variant: Variant, text: str) -> locks.Lock:
    project.write("docker/locks/cpu.txt", text)
    return locks.load(project.root, variant)


def check(project: Project, matrix: Matrix, text: str, **tables: Any) -> None:
    variant = matrix.variant("cpu")
    table = {"project": {"dependencies": ["small>=1"], **tables}}
    locks.check(load(project, variant, text), table, matrix.engine, variant)


def test_pip_compiles_format_is_read(project: Project, variant: Variant) -> None:
    text = (
        "# by pip-compile\n--no-binary x\n"
        f"Foo_Bar[all]==1.0 \\\n    {HASH} \\\n    --hash=sha256:{'1' * 64}\n    # via baz\n"
        f'win==2.0 ; sys_platform == "win32" \\\n    {HASH}\n'
        f'lin==3.0 ; python_version < "3.12" {HASH}\n'
    )
    pins = load(project, variant, text).pins
    assert list(pins) == ["foo-bar", "lin"]
    assert pins["foo-bar"].hashes == (f"sha256:{'0' * 64}", f"sha256:{'1' * 64}")


@pytest.mark.parametrize("line", ["small>=1", "small==1.0", f"small {HASH}", f"small>=1 {HASH}"])
def test_an_entry_without_pin_or_hash_is_refused(
    project: Project, variant: Variant, line: str
) -> None:
    with pytest.raises(LockError, match="small") as caught:
        load(project, variant, f"{line}\n")
    assert caught.value.remedy == "slipway image lock cpu"


def test_a_missing_lock_is_refused(project: Project, variant: Variant) -> None:
    (project.root / variant.lock).unlink()
    with pytest.raises(LockError, match=r"no lock file docker/locks/cpu\.txt"):
        locks.load(project.root, variant)


def test_a_requirement_that_is_not_locked_is_named(project: Project, matrix: Matrix) -> None:
    with pytest.raises(LockError, match=r"does not lock 'small>=1' of pyproject.toml"):
        check(project, matrix, f"other==1 {HASH}\n")


def test_a_pin_outside_the_range_is_named(project: Project, matrix: Matrix) -> None:
    with pytest.raises(LockError, match=r"locks small==0.9, but pyproject.toml asks for"):
        check(project, matrix, f"small==0.9 {HASH}\n")


def test_the_extra_counts_and_other_platforms_do_not(project: Project, matrix: Matrix) -> None:
    more = {"optional-dependencies": {"engine": ["win; sys_platform == 'win32'"], "dev": ["x"]}}
    check(project, matrix, f"small==1.0 {HASH}\n", **more)
    more["optional-dependencies"]["engine"].append("needed")
    with pytest.raises(LockError, match="needed"):
        check(project, matrix, f"small==1.0 {HASH}\n", **more)


def test_a_forbidden_package_is_named(project: Project, matrix: Matrix) -> None:
    with pytest.raises(LockError, match="locks nvidia-cublas, which the variant cpu forbids"):
        check(project, matrix, f"small==1.0 {HASH}\nnvidia_cublas==13.0 {HASH}\n")


def test_a_requirement_that_cannot_be_read_is_named(project: Project, matrix: Matrix) -> None:
    with pytest.raises(ConfigError, match=r"pyproject.toml: 'small >' is not a requirement"):
        check(project, matrix, f"small==1.0 {HASH}\n", dependencies=["small >"])


def test_the_cpu_image_of_this_repository_never_gets_cuda() -> None:
    root = Path(__file__).resolve().parents[4]
    matrix = matrices.load(root)
    variant = matrix.variant("cpu")
    lock = locks.load(root, variant)
    project = locks.read_project(root / matrix.engine.pyproject)
    locks.check(lock, project, matrix.engine, variant)
    torch = lock.pins["torch"]
    assert torch.version.endswith("+cpu")
    cuda = torch.version.removesuffix("+cpu")
    swapped = locks.Lock(lock.path, {**lock.pins, "torch": locks.Pin("torch", cuda, torch.hashes)})
    with pytest.raises(LockError, match=f"locks torch=={cuda}, but the variant cpu") as caught:
        locks.check(swapped, project, matrix.engine, variant)
    assert "slipway image lock cpu" in caught.value.remedy


def test_what_passed_before_is_not_judged_again_and_what_changed_is(
    project: Project, matrix: Matrix, variant: Variant, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[str] = []
    real = locks.check

    def counting(lock: locks.Lock, *rest: Any) -> None:
        judged.append("")
        real(lock, *rest)

    monkeypatch.setattr(locks, "check", counting)

    def once() -> None:
        table = locks.read_project(project.root / matrix.engine.pyproject)
        lock = locks.load(project.root, variant)
        locks.check_once(project.root, lock, table, matrix.engine, variant, project.cache)

    once()
    once()
    assert len(judged) == 1
    project.write("docker/locks/cpu.txt", f"small==1.0 {HASH}\n")
    for count in (2, 3):
        with pytest.raises(LockError, match="big"):
            once()
        assert len(judged) == count, "a failure is not remembered"
