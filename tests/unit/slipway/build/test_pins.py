"""Families, pins and profiles of the matrix: what several rows share stands in one place."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from slipway.build import base, key, pins
from slipway.build import lock as locks
from slipway.build import matrix as matrices
from slipway.errors import ConfigError, LockError, UsageError
from slipway.image.reference import parse
from support.project import MATRIX

ROOT = Path(__file__).resolve().parents[4]
ROCM = [f"rocm{release}-mi{chip}x" for release in (700, 720, 724, 1000) for chip in (30, 35)]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "docker").mkdir()
    shutil.copy(ROOT / "docker/matrix.toml", tmp_path / "docker")
    return tmp_path


def test_one_bump_changes_aiter_in_eight_rows_and_one_line(checkout: Path) -> None:
    path = checkout / "docker/matrix.toml"
    before = path.read_text().splitlines()
    assert pins.bump(checkout, "aiter", "4ad99832823dde2315b361cbd3b54b1c5c12acd5") == ROCM
    after = path.read_text().splitlines()
    assert [line for line in after if line not in before] == [
        'aiter = "4ad99832823dde2315b361cbd3b54b1c5c12acd5"'
    ]
    assert len(after) == len(before)
    rows = matrices.load(checkout).variants
    assert {rows[name].args["AITER_COMMIT"] for name in ROCM} == {
        "4ad99832823dde2315b361cbd3b54b1c5c12acd5"
    }


def test_every_pin_has_a_user(checkout: Path) -> None:
    users = pins.users(checkout)
    assert users["rocm720-base"] == ["rocm720-mi30x", "rocm720-mi35x"]
    assert users["torch"] == ["cpu", "cu130"]
    assert [name for name, rows in users.items() if not rows] == []


@pytest.mark.parametrize(("name", "value"), [("nobody", "1"), ("aiter", 'a"b'), ("aiter", "")])
def test_what_is_no_pin_or_value_is_refused(checkout: Path, name: str, value: str) -> None:
    before = (checkout / "docker/matrix.toml").read_text()
    with pytest.raises(UsageError):
        pins.bump(checkout, name, value)
    assert (checkout / "docker/matrix.toml").read_text() == before


def test_rows_differ_in_what_the_family_says(checkout: Path) -> None:
    rows = matrices.load(checkout).variants
    assert [rows[name].args["GPU_ARCH"] for name in ROCM] == ["gfx942", "gfx950"] * 4
    triton = [name for name in ROCM if rows[name].args["BUILD_TRITON"] == "1"]
    assert triton == [n for n in ROCM if n.startswith(("rocm720", "rocm724"))]
    legacy = [name for name in ROCM if rows[name].env["HSA_ENABLE_IPC_MODE_LEGACY"] == "1"]
    assert legacy == ["rocm724-mi30x", "rocm724-mi35x"]
    assert {rows[name].dockerfile for name in ROCM} == {Path("docker/rocm.Dockerfile")}
    assert matrices.load(checkout).in_ci == ["cpu"]


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ('[variants.x]\ninherits = "nobody"\n', "nobody"),
        ('[families.a]\ninherits = "a"\n[variants.x]\ninherits = "a"\n', "itself"),
        ('[variants.x]\nbuilder = "{nothing}"\n', "nothing"),
    ],
)
def test_what_is_not_there_is_named(more: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        matrices.parse(MATRIX + more)


def test_a_pin_or_a_variable_changes_the_key_and_a_profile_does_not(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def keys() -> dict[str, str]:
        matrix = matrices.load(checkout)
        empty = locks.Lock(Path(), {})
        return {
            name: key.compute({}, matrix.engine, row, empty, "", dockerfile=b"").value
            for name, row in matrix.variants.items()
            if name in ROCM
        }

    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    monkeypatch.delenv("SLIPWAY_BASE_MIRROR", raising=False)
    before = keys()
    matrices.use_profile(matrices.load(checkout), "cn")
    try:
        assert base.mirrored(parse("python:3.11")) == parse(
            "mirror.example.cn/hub/library/python:3.11"
        )
        assert base.mirrored(parse("quay.io/a/b:1")) == parse("quay.io/a/b:1")
        assert os.environ["PIP_INDEX_URL"].startswith("https://pypi-mirror.example.cn")
        assert keys() == before
    finally:
        os.environ.pop("SLIPWAY_BASE_MIRROR", None)
        os.environ.pop("PIP_INDEX_URL", None)
    pins.bump(checkout, "aiter", "0" * 40)
    assert set(keys().values()).isdisjoint(before.values())
    with pytest.raises(UsageError, match="no profile 'mars'"):
        matrices.use_profile(matrices.load(checkout), "mars")


def test_what_the_base_provides_is_not_locked(checkout: Path) -> None:
    matrix = matrices.load(checkout)
    row = matrix.variants["rocm720-mi30x"]
    project = locks.read_project(ROOT / "pyproject.toml")
    lock = locks.load(ROOT, row)
    assert "torch" not in lock.pins
    locks.check(lock, project, matrix.engine, row)
    pin = locks.Pin("torch", "2.13.0", ("sha256:" + "0" * 64,))
    with pytest.raises(LockError, match="torch, which the base of rocm720-mi30x has"):
        locks.check(locks.Lock(lock.path, {**lock.pins, "torch": pin}), project, matrix.engine, row)
