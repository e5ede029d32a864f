"""`keel bench` on a real server and on the engine alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.serving import Server


def bench(env: dict[str, str], *words: str, code: int = 0) -> Any:
    command = [sys.executable, "-m", "keel", "bench", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=120)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout) if code == 0 and "--json" in words else done


def test_a_load_of_chats_is_measured_as_the_server_counts_it(
    server: Server, environment: dict[str, str], model_path: Path, tmp_path: Path
) -> None:
    words = ["serve", "--base-url", server.url, "--json", "--tokenizer", str(model_path)]
    words += ["--num-prompts", "6", "--max-concurrency", "3", "--random-input-len", "30"]
    words += ["--random-prefix-len", "90", "--random-output-len", "7", "--runs", "2"]
    words += ["--endpoint", "chat", "--output-file", str(tmp_path / "report.json")]
    found = bench(environment, *words)
    assert found == json.loads((tmp_path / "report.json").read_text())
    assert (found["schema"], found["kind"], found["model"]) == (1, "serve", "smollm2")
    for run in found["runs"]:
        assert (run["completed"], run["failed"], run["output_tokens"]) == (6, 0, 42)
        assert run["input_tokens"] >= 6 * 120
        # All but the first three of a run find the system message in the cache.
        assert run["cache_hit_rate"] > 0.3
        assert 0 < run["ttft_ms"]["p50"] <= run["ttft_ms"]["p99"] < run["e2e_ms"]["max"]
    assert found["errors"] == []


def test_a_table_is_for_people(server: Server, environment: dict[str, str]) -> None:
    words = ["--num-prompts", "2", "--random-output-len", "3", "--request-rate", "50"]
    done = bench(environment, "serve", "--base-url", server.url, *words)
    assert "2 requests, 50 a second" in done.stdout
    assert "time to first token" in done.stdout


def test_the_engine_alone(environment: dict[str, str], model_path: Path) -> None:
    words = ["offline", "--model-path", str(model_path), "--json", "--num-prompts", "3"]
    words += ["--random-input-len", "20", "--random-output-len", "5", "--max-total-tokens", "4096"]
    found = bench(environment, *words)
    figures = found["figures"]
    assert (found["kind"], figures["completed"], figures["output_tokens"]) == ("offline", 3, 15)
    assert figures["input_tokens"] == 60
    assert figures["output_tokens_per_s"] > 0


def test_what_cannot_be_measured_is_one_sentence(environment: dict[str, str]) -> None:
    done = bench(environment, "serve", "--base-url", "http://127.0.0.1:9", code=7)
    assert "names no model" in done.stderr
    assert "Traceback" not in done.stderr


def test_requests_that_a_server_refuses_are_shown(
    server: Server, environment: dict[str, str]
) -> None:
    words = ["--num-prompts", "1", "--extra-request-body", '{"temperature": -1}']
    done = bench(environment, "serve", "--base-url", server.url, *words, code=7)
    assert "HTTP 4" in done.stderr
    assert "temperature" in done.stderr
