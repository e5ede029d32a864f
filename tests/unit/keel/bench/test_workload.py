"""The same seed asks the same; another run asks others of the same kind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from keel.args.bench import BenchServeArgs, parse_bench_serve
from keel.bench.workload import arrivals, exact, prompts
from keel.errors import ArgumentError


def parse(*words: str) -> BenchServeArgs:
    return parse_bench_serve(words)


def test_a_run_is_repeatable_and_runs_differ() -> None:
    args = parse("--num-prompts", "6", "--random-prefix-len", "5", "--random-prefix-groups", "2")
    first = prompts(args, 0)
    assert first == prompts(args, 0)
    assert first != prompts(args, 1)
    assert [one.prefix for one in first] == [first[0].prefix, first[1].prefix] * 3
    assert len(first[0].prefix.split()) == 5
    assert len(first[0].text.split()) == args.random_input_len


def test_lengths_are_drawn_within_the_ratio() -> None:
    args = parse("--num-prompts", "300", "--random-range-ratio", "0.5", "--random-output-len", "40")
    lengths = {one.new_tokens for one in prompts(args, 0)}
    assert min(lengths) == 20
    assert max(lengths) == 40


def test_a_tokenizer_gives_exact_lengths() -> None:
    # Every second character is a token, so that words are several.
    def encode(text: str) -> list[int]:
        return [ord(one) for one in text[::2]]

    write = exact(encode, lambda ids: "".join(chr(one) + "x" for one in ids))
    args = parse("--random-input-len", "37", "--num-prompts", "5")
    assert {len(encode(one.text)) for one in prompts(args, 0, write)} == {37}


def test_gaps_have_the_rate_that_was_asked() -> None:
    times = arrivals(parse("--num-prompts", "4000", "--request-rate", "50"), 0)
    assert times == sorted(times)
    assert times[-1] == pytest.approx(80.0, rel=0.1)
    assert set(arrivals(parse("--num-prompts", "9"), 0)) == {0.0}


def test_files_of_prompts_of_three_kinds(tmp_path: Path) -> None:
    lines = [
        {"prompt": "one", "max_tokens": 3},
        {"messages": [{"role": "user", "content": "two"}]},
        {"conversations": [{"from": "human", "value": "three"}, {"from": "gpt", "value": "!"}]},
        {"conversations": [{"from": "gpt", "value": "a machine begins"}]},
    ]
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    args = parse("--dataset-path", str(path), "--num-prompts", "6", "--random-output-len", "9")
    found = prompts(args, 0)
    assert sorted(one.text for one in found) == ["", "", "one", "one", "three", "three"]
    assert {one.text or "two": one.new_tokens for one in found} == {"one": 3, "two": 9, "three": 9}
    path.write_text(json.dumps(lines[:1]))
    assert prompts(args, 0)[0].text == "one"


@pytest.mark.parametrize("text", ["", "no json", "[]", '{"other": 1}', '["text"]'])
def test_a_file_without_prompts_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "prompts.json"
    path.write_text(text)
    with pytest.raises(ArgumentError, match=str(path)):
        prompts(parse("--dataset-path", str(path)), 0)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--request-rate", "0"], "--request-rate"),
        (["--random-range-ratio", "2"], "--random-range-ratio"),
        (["--num-prompts", "0"], "--num-prompts"),
        (["--base-url", "here"], "--base-url"),
        (["--extra-request-body", "[]"], "--extra-request-body"),
        (["--dataset-path", "x", "--random-prefix-len", "3"], "--random-prefix-len"),
    ],
)
def test_flags_that_cannot_be_meant_are_named(words: list[str], named: str) -> None:
    with pytest.raises(ArgumentError, match=named):
        parse(*words)
