"""Flags of the server: names, conversions, contradictions, weight."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from keel.args import FLAGS, ServerArgs, parse
from keel.errors import ArgumentError


def test_names_of_the_ecosystem_and_their_aliases_mean_the_same() -> None:
    long = parse(["--model-path", "m", "--tensor-parallel-size", "1", "--max-total-tokens", "64"])
    short = parse(["--model", "m", "--tp", "1", "--max-total-tokens=64"])
    assert long == short
    assert long.max_total_tokens == 64


def test_defaults_are_those_of_the_dataclass() -> None:
    assert parse(["--model-path", "m"]) == ServerArgs(model_path="m")


def test_the_served_name_is_the_path_unless_given() -> None:
    assert parse(["--model-path", "m"]).model_name == "m"
    assert parse(["--model-path", "m", "--served-model-name", "n"]).model_name == "n"


def test_metrics_are_on_and_can_be_switched_off() -> None:
    assert parse(["--model-path", "m"]).enable_metrics
    assert parse(["--model-path", "m", "--enable-metrics"]).enable_metrics
    assert not parse(["--model-path", "m", "--no-enable-metrics"]).enable_metrics


@pytest.mark.parametrize(
    ("argv", "named", "fix"),
    [
        ([], "--model-path", "--help"),
        (["--model-path", " "], "--model-path", "GGUF"),
        (["--model-path", "m", "--prot", "1"], "--prot", "--port"),
        (["--model-path", "m", "--port", "70000"], "from 0 to 65535", ""),
        (["--model-path", "m", "--port", "x"], "'x' is not a whole number", ""),
        (["--model-path", "m", "--dtype", "int3"], "float32, float16, bfloat16", ""),
        (["--model-path", "m", "--mem-fraction-static", "1.5"], "between 0 and 1", ""),
        (["--model-path", "m", "--chunked-prefill-size", "0"], "-1", ""),
        (["--model-path", "m", "--max-running-requests", "-3"], "at least 1", ""),
        (["--model-path", "m", "--tp", "2"], "--tp-size 2", "keel router"),
        (["--model-path", "m", "--device", "cpu", "--dtype", "float16"], "float16", "bfloat16"),
        (
            ["--model-path", "m", "--context-length", "9", "--max-total-tokens", "8"],
            "--context-length 9",
            "--max-total-tokens to 9",
        ),
        (["--model-path", "m", "--default-chat-template-kwargs", "{"], "not JSON", ""),
        (["--model-path", "m", "--default-chat-template-kwargs", "[]"], "no object", ""),
        (["--model-path", "m", "stray"], "stray", ""),
    ],
)
def test_what_cannot_be_meant_names_the_flag_and_the_fix(
    argv: list[str], named: str, fix: str
) -> None:
    with pytest.raises(ArgumentError) as caught:
        parse(argv)
    assert named in caught.value.what
    assert fix in caught.value.remedy
    assert caught.value.exit_code == 2


def test_prefixes_of_flags_are_refused() -> None:
    with pytest.raises(ArgumentError, match="--model-pat"):
        parse(["--model-path", "m", "--model-pat", "x"])


def test_every_flag_says_what_it_does_and_is_a_field() -> None:
    for entry in FLAGS:
        assert entry.help.endswith(".")
        assert entry.field in ServerArgs.__dataclass_fields__
        assert all(name.startswith("--") for name in entry.names)
    names = [name for entry in FLAGS for name in entry.names]
    assert len(names) == len(set(names))


def test_help_lists_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        parse(["--help"])
    assert left.value.code == 0
    shown = capsys.readouterr().out
    assert all(entry.name in shown for entry in FLAGS)


def test_importing_the_flags_loads_nothing_slow() -> None:
    slow = ["torch", "numpy", "fastapi", "pydantic", "transformers", "tokenizers", "msgspec"]
    code = f"import sys, keel.args; print([m for m in {slow} if m in sys.modules])"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    assert done.stdout.strip() == "[]"
