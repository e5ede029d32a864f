"""Commands are read leniently; what is known of flags is data that agrees with itself."""

from __future__ import annotations

import subprocess
import sys

import pytest

from keel.args import FLAGS
from keel.args.knowledge import CONSTRAINTS, PAIRINGS, Launch, read_launch
from keel.args.knowledge import sglang_flags as sglang


def read(command: str, **env: str) -> Launch:
    return read_launch("sglang", command.split(), env)


@pytest.mark.parametrize(
    ("command", "name", "value"),
    [
        ("--tp 4", "tp-size", "4"),
        ("--tensor-parallel-size=4", "tp-size", "4"),
        ("--dp 2 --dp 3", "dp-size", "3"),
        ("--enable-hicache", "enable-hierarchical-cache", ""),
        ("--chunked-prefill-size -1", "chunked-prefill-size", "-1"),
        ("--speculative-dspark-block 5", "speculative-dspark-block-size", "5"),
        ("--a-flag-of-tomorrow x", "a-flag-of-tomorrow", "x"),
    ],
)
def test_every_spelling_of_a_flag_is_one(command: str, name: str, value: str) -> None:
    launch = read(command)
    assert launch.has(name)
    assert launch.text(name) == value
    assert launch.complaints == ()


def test_a_switch_takes_no_word_and_a_list_takes_all() -> None:
    launch = read("--enable-metrics stray --cuda-graph-bs-decode 1 2 4 --trust-remote-code")
    assert launch.flags["enable-metrics"] == ()
    assert launch.flags["cuda-graph-bs-decode"] == ("1", "2", "4")
    assert read("--enable-tf32-matmul --no-enable-tf32-matmul").flags == {}


@pytest.mark.parametrize(
    ("command", "attention_tp", "devices"),
    [
        ("", 1, 1),
        ("--tp 8", 8, 8),
        ("--tp 8 --pp 2", 8, 16),
        ("--tp 8 --dp 2", 8, 16),
        ("--tp 8 --dp 2 --enable-dp-attention", 4, 8),
        ("--tp 8 --attn-dp-size 8", 1, 8),
        ("--tp 8 --enable-prefill-cp --cp-strategy interleave", 1, 8),
        ("--tp 8 --attn-cp-size 2", 4, 8),
        ("--tp 16 --nnodes 2", 16, 8),
        ("--tp x", 1, 1),
        ("--tp " + "9" * 5000, 1, 1),
    ],
)
def test_sizes_follow_from_the_flags(command: str, attention_tp: int, devices: int) -> None:
    launch = read(command)
    assert (launch.attention_tp, launch.devices) == (attention_tp, devices)


def test_only_what_no_version_could_take_is_complained_of() -> None:
    assert [each.what for each in read("--max-runing-requests 3").complaints] == [
        "the engine has no flag --max-runing-requests"
    ]
    assert read("--tp").complaints[0].what == "--tp has no value"
    assert read("--port x").complaints[0].what == "--port x: not a whole number"
    assert read("--mem-fraction-static much").complaints[0].what.endswith("not a number")
    for unlike in ("--dsv5-attn", "--kernel-of-tomorrow", "--port <PORT>", "--tp <TP>"):
        assert read(unlike).complaints == (), unlike


def test_the_tables_agree_with_each_other_and_with_this_engines_flags() -> None:
    kinds = (sglang.SWITCHES, sglang.WHOLE, sglang.DECIMAL, sglang.TEXT, sglang.MANY)
    every = [name for names in kinds for name in names]
    assert len(every) == len(set(every)) > 500
    assert not set(sglang.ALIASES) & set(every)
    for other, name in sglang.ALIASES.items():
        assert name in every, other
    for flag in FLAGS:  # a flag that both have takes a value in both or in none
        name = flag.name[2:]
        if name in every:
            assert (name in sglang.SWITCHES) == flag.switch, name


def test_every_piece_of_knowledge_has_a_name_and_a_source() -> None:
    names = [each.name for each in (*CONSTRAINTS, *PAIRINGS)]
    assert len(names) == len(set(names))
    for each in (*CONSTRAINTS, *PAIRINGS):
        assert each.about
        assert each.source
    for constraint in CONSTRAINTS:
        assert list(constraint.find(read(""))) == []


def test_the_knowledge_is_light() -> None:
    code = (
        "import sys, keel.args.knowledge as k; k.read_launch('sglang', ['--tp', '2'], {});"
        "print(sorted({'torch', 'pydantic', 'numpy', 'slipway'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
