"""Each rule finds its mistake in one file, and nothing in the nearest file that is right."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipway.deploy.check import Severity, check, errors
from slipway.deploy.compose import read_compose
from slipway.deploy.rules import RULES

ROOT = Path(__file__).resolve().parents[4]
DIGEST = "sha256:" + "5" * 64

RIGHT = f"""
name: right
services:
  engine:
    image: registry.example/keel@{DIGEST}
    command: serve --model-path /models/x.gguf --host 0.0.0.0 --port 30000
    ports: ["127.0.0.1:30000:30000"]
    volumes: ["/srv/models:/models:ro"]
    healthcheck:
      test: [CMD, python, -c, "h.HTTPConnection('127.0.0.1', 30000)"]
"""

# rule -> what is replaced in RIGHT, what by, and by which near miss that is right again
CASES = {
    "engine-flags": [
        ("--host 0.0.0.0", "--hots 0.0.0.0", "--host=0.0.0.0", ""),
        ("--host 0.0.0.0", "--host 0.0.0.0 --dtype fp8", "--host 0.0.0.0 --dtype auto", ""),
        ("--model-path /models/x.gguf", "", "--model /models/x.gguf", ""),
        ("command: serve", "command: keel serve --tp 2", "command: keel serve --tp 1", ""),
    ],
    "image-pinned": [
        (f"@{DIGEST}", ":latest", "", "${IMAGE:?by digest}"),
        (f"@{DIGEST}", "", f":v1@{DIGEST}", ""),
    ],
    "health-port": [
        ("'127.0.0.1', 30000)", "'127.0.0.1', 3000)", "'127.0.0.1', 30000, timeout=3)", ""),
    ],
    "published-port": [
        ("30000:30000", "30000:3000", "3000:30000", ""),
        ("    ports:", "    network_mode: host\n    ports:", "    tty: true\n    ports:", ""),
    ],
    "taken-port": [
        ('["127.0.0.1:30000:30000"]', '["30000:30000", "127.0.0.1:30000:30000"]',
         '["127.0.0.2:30000:30000", "127.0.0.1:30000:30000"]', ""),
    ],
    "model-mount": [
        (":/models:ro", ":/model:ro", ":/models/x.gguf:ro", ""),
        ("/models/x.gguf", "/weights/x.gguf", "org/name-on-a-hub", ""),
    ],
    "privileged": [("ports:", "privileged: true\n    ports:", "privileged: false\n    ports:", "")],
    "project-name": [("name: right\n", "", "name: other\n", "")],
}  # fmt: skip


def found(tmp_path: Path, text: str) -> set[str]:
    path = tmp_path / "compose.yml"
    path.write_text(text)
    return {finding.rule for finding in check(read_compose(path))}


def test_the_file_that_the_cases_start_from_is_right(tmp_path: Path) -> None:
    assert found(tmp_path, RIGHT) == set()


def test_every_rule_has_a_case() -> None:
    assert {rule.name for rule in RULES} == set(CASES)


@pytest.mark.parametrize(
    ("rule", "old", "wrong", "near", "whole"),
    [(rule, *case) for rule, cases in CASES.items() for case in cases],
)
def test_a_rule_finds_its_mistake_and_passes_the_nearest_file(
    tmp_path: Path, rule: str, old: str, wrong: str, near: str, whole: str
) -> None:
    assert old in RIGHT
    assert found(tmp_path, RIGHT.replace(old, wrong)) == {rule}
    right = (
        RIGHT.replace(f"registry.example/keel{old}", whole) if whole else RIGHT.replace(old, near)
    )
    assert found(tmp_path, right) == set()


def test_two_engines_on_the_hosts_network_need_two_ports(tmp_path: Path) -> None:
    text = """
name: host
services:
  a: {{image: "${{I:?i}}", network_mode: host, command: sglang serve --port {0}}}
  b: {{image: "${{I:?i}}", network_mode: host, command: sglang serve --port {1}}}
"""
    assert found(tmp_path, text.format(30000, 30000)) == {"taken-port"}
    assert found(tmp_path, text.format(30000, 30001)) == set()


def test_a_finding_says_where_why_and_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "compose.yml"
    path.write_text(RIGHT.replace("30000:30000", "30000:3000").replace("name: right\n", ""))
    first, second = check(read_compose(path))
    assert [first.severity, second.severity] == [Severity.ERROR, Severity.WARNING]
    assert str(first) == (
        f"error: {path}:3: engine: port 3000 is published, but the engine listens on 30000 "
        "[published-port]\n  fix: publish 30000"
    )
    assert first.to_json()["rule"] == "published-port"
    assert errors([first, second]) == [first]


def test_the_rendered_files_of_this_repository_pass() -> None:
    for path in ROOT.glob("deploy/*/dockerserve-*.yml"):
        assert check(read_compose(path)) == []
