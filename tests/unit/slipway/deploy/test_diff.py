"""What differs is computed: nothing from a file to itself, and the same axes both ways."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from slipway.cli.deploy import command
from slipway.deploy.compose import parse_compose, read_compose
from slipway.deploy.diff import diff, words

ROOT = Path(__file__).parents[4]
FILES = sorted(ROOT.glob("deploy/*/dockerserve-*.yml"))

TEXT = """
name: one
services:
  engine:
    image: team/keel@sha256:{digest}
    network_mode: host
    command: >-
      keel serve --model-path /m --tp-size {tp} --port {port} {flags}
    environment: {{ LEVEL: "{level}" }}
    volumes: ["/models:/m:ro"]
    deploy:
      resources:
        reservations:
          devices: [{{ driver: nvidia, device_ids: {gpus}, capabilities: [gpu] }}]
"""
PLAIN = {
    "digest": "a" * 64,
    "tp": 2,
    "port": 30000,
    "flags": "",
    "level": "1",
    "gpus": '["0", "1"]',
}


def said(**changes: object) -> list[str]:
    one, other = ({**PLAIN}, {**PLAIN, **changes})
    first, second = (parse_compose(TEXT.format(**x), Path("x.yml"), {}) for x in (one, other))
    return words(diff(first, second))


def test_a_file_does_not_differ_from_itself() -> None:
    assert len(FILES) > 30
    for path in FILES:
        assert diff(read_compose(path), read_compose(path)) == [], path


def test_the_axes_are_the_same_both_ways() -> None:
    read = {path: read_compose(path) for path in FILES}
    for one, other in itertools.combinations(FILES[::3], 2):
        there = {
            (each.axis, each.what, each.before, each.after) for each in diff(read[one], read[other])
        }
        back = {
            (each.axis, each.what, each.after, each.before) for each in diff(read[other], read[one])
        }
        assert there == back, (one, other)
        assert there, (one, other)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"gpus": '["6", "7"]'}, "GPUs 6,7 instead of 0,1"),
        ({"tp": 4}, "tp 2 -> 4"),
        ({"port": 30001}, "port 30001 instead of 30000"),
        ({"level": "2"}, "env LEVEL 1 -> 2"),
        (
            {"flags": "--hicache-write-policy write_through"},
            "hicache write-policy on (write_through)",
        ),
        ({"flags": "--enable-metrics"}, "flag enable-metrics on"),
    ],
)
def test_a_difference_is_one_sentence(changes: dict[str, object], sentence: str) -> None:
    assert said(**changes) == [sentence]


def test_the_command_takes_names_and_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    one, other = "b300-ds41-tp4-dspark-f4", "deploy/b300-ds41/dockerserve-tp4-dspark-b4.yml"
    done = CliRunner().invoke(command, ["diff", one, other])
    assert done.exit_code == 0, done.output
    assert "GPUs 4,5,6,7 instead of 0,1,2,3" in done.output
    done = CliRunner().invoke(command, ["diff", "--json", one, other])
    assert {row["axis"] for row in json.loads(done.output)} >= {"gpus", "port"}
    same = CliRunner().invoke(command, ["diff", one, one])
    assert same.output == "no difference\n"
