"""`keel check`: a server's refusals before there is a server, and without what makes one slow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from keel.check import check, main
from keel.errors import ArgumentError, ModelError
from support import tiny as tiny_models

SRC = Path(__file__).parents[3] / "src"


def test_the_verdict_names_what_was_given_and_what_follows(tiny: Path) -> None:
    flags = ["--model-path", str(tiny), "--dtype", "bfloat16", "--max-total-tokens", "200"]
    verdict = check(["keel", "serve", *flags, "--api-key", "hush"])
    assert verdict == check(["python3", "-m", "keel", "serve", *flags, "--api-key", "hush"])
    assert verdict.given["--max-total-tokens"] == 200
    assert verdict.given["--api-key"] == "(set)"
    assert "--port" not in verdict.given
    assert verdict.model["architecture"] == "LlamaForCausalLM"
    assert "holds 200 tokens" in verdict.notes[0]
    assert "256 bytes a token" in verdict.notes[1]  # 2 x 2 layers x 2 heads x 16 x 2 bytes


def test_more_context_than_the_model_knows_is_told(tiny: Path) -> None:
    assert "512 positions" in check(["--model-path", str(tiny), "--context-length", "999"]).notes[1]


def test_a_router_is_checked_by_its_own_flags() -> None:
    assert check(["keel", "router", "--port", "0"]).given == {"--port": 0}
    with pytest.raises(ArgumentError, match="--prot"):
        check(["keel", "router", "--prot", "0"])


def test_what_a_server_would_refuse_is_refused_in_its_words(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="--tp-size 2"):
        check(["--model-path", str(tiny), "--tp", "2"])
    with pytest.raises(ModelError, match="no such file"):
        check(["--model-path", str(tmp_path / "nothing")])
    other = tiny_models.write(tmp_path / "other", architectures=["GPT9ForCausalLM"])
    with pytest.raises(ModelError, match="GPT9ForCausalLM"):
        check(["--model-path", str(other)])


def test_json_is_for_machines(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--json", "--", "keel", "serve", "--model-path", str(tiny)])
    assert json.loads(capsys.readouterr().out)["ok"] is True


def test_torch_is_not_loaded(tiny: Path) -> None:
    code = (
        "import sys; from keel.check import main; main(['--model-path', sys.argv[1]]); "
        "slow = {'torch', 'numpy', 'transformers', 'fastapi'} & set(sys.modules); "
        "assert not slow, slow"
    )
    env = {**os.environ, "PYTHONPATH": str(SRC)}
    subprocess.run([sys.executable, "-c", code, str(tiny)], check=True, env=env, timeout=60)
