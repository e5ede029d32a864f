"""Each rule finds its mistake in one file, and nothing in the nearest file that is right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slipway.deploy.check import Finding, Severity, check, check_files, errors, read_files
from slipway.deploy.compose import read_compose
from slipway.deploy.rules import RULES
from unit.slipway.deploy.rule_cases import CASES, IMAGE, Files, compose, one, service

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
TEXT_CASES = {
    "engine-flags": [
        ("--port 30000", "--prot 30000", "--port=30000"),
        ("--host 0.0.0.0", "--host 0.0.0.0 --dtype fp8", "--host 0.0.0.0 --dtype auto"),
        ("--model-path /models/x.gguf", "", "--model /models/x.gguf"),
    ],
    "health-port": [
        ("'127.0.0.1', 30000)", "'127.0.0.1', 3000)", "'127.0.0.1', 30000, timeout=3)"),
    ],
    "published-port": [
        ("30000:30000", "30000:3000", "3000:30000"),
        ("    ports:", "    network_mode: host\n    ports:", "    tty: true\n    ports:"),
    ],
    "taken-port": [
        ('["127.0.0.1:30000:30000"]', '["30000:30000", "127.0.0.1:30000:30000"]',
         '["127.0.0.2:30000:30000", "127.0.0.1:30000:30000"]'),
    ],
    "model-mount": [
        (":/models:ro", ":/model:ro", ":/models/x.gguf:ro"),
        ("/models/x.gguf", "/weights/x.gguf", "org/name-on-a-hub"),
    ],
    "privileged": [("ports:", "privileged: true\n    ports:", "privileged: false\n    ports:")],
    "project-name": [("name: right\n", "", "name: other\n")],
}  # fmt: skip

# A comment, and the nearest one that is true of two engines `a` on GPUs 0,1 and `b` on 2,3.
COMMENTS = [
    ("GPU: a=0,1 b=4,5", "GPU: a=0,1 b=2,3"),
    ("GPU 0-1(a)/2-4(b)", "GPU 0-1(a)/2-3(b)"),
    ("GPU 0-1(a)/2-3(c)", "on GPUs of the third host"),
    ("Ports: a=30000 b=30011 router=30002", "Ports: a=30000 b=30010 router=30002"),
    ("端口: 30000/30020", "端口: 30000/30010"),
    ("3 x tp2 behind one router", "2 x tp2 behind one router"),
    ("4×tp2 独立实例", "2×tp2 独立实例"),
    ("a single instance", "two instances"),
    ("双机，容器 engine-z", "双机，容器 engine-a"),
    ("no dspark, no PD", "no replay, no PD"),
    ("project other", "project p"),
]


def found(folder: Path, files: Files) -> list[Finding]:
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    read = read_files([folder / name for name in files], {})
    return check_files(read, host_gpus=8)


def rules(findings: list[Finding]) -> set[str]:
    return {finding.rule for finding in findings}


def test_every_rule_has_a_pair_of_files() -> None:
    assert {rule.name for rule in RULES} == set(CASES)
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert {name for name, cases in CASES.items() if not cases} == {"comment-claims", "set-project"}
    assert all(rule.about and rule.source for rule in RULES)


@pytest.mark.parametrize(
    ("rule", "wrong", "right"),
    [
        pytest.param(rule, *case, id=f"{rule}-{index}")
        for rule, cases in CASES.items()
        for index, case in enumerate(cases)
    ],
)
def test_a_rule_finds_its_mistake_and_passes_the_nearest_file(
    tmp_path: Path, rule: str, wrong: Files, right: Files
) -> None:
    findings = found(tmp_path, wrong)
    assert rules(findings) == {rule}
    assert all(finding.reason and finding.fix and finding.source for finding in findings)
    assert found(tmp_path, right) == []


@pytest.mark.parametrize(
    ("rule", "old", "wrong", "near"),
    [(rule, *case) for rule, cases in TEXT_CASES.items() for case in cases],
)
def test_a_rule_holds_for_this_projects_engine_too(
    tmp_path: Path, rule: str, old: str, wrong: str, near: str
) -> None:
    assert old in RIGHT
    path = tmp_path / "compose.yml"
    for text, expected in ((wrong, {rule}), (near, set())):
        path.write_text(RIGHT.replace(old, text))
        assert rules(check(read_compose(path))) == expected


@pytest.mark.parametrize(("wrong", "right"), COMMENTS)
def test_a_comment_that_contradicts_the_file_is_found(
    tmp_path: Path, wrong: str, right: str
) -> None:
    draft = "--tp 2 --speculative-algorithm DSPARK"
    content = compose(
        a=service(draft, gpus=(0, 1), container_name="engine-a"),
        b=service(draft, gpus=(2, 3), port=30010, container_name="engine-b"),
    )
    path = tmp_path / "compose.yml"
    for comment, expected in ((wrong, {"comment-claims"}), (right, set())):
        path.write_text(f"# {comment}\n{json.dumps(content)}\n")
        assert rules(check(read_compose(path))) == expected


def test_the_only_difference_is_computed(tmp_path: Path) -> None:
    (tmp_path / "dockerserve-base.yml").write_text(json.dumps(one("--tp 1")["compose.yml"]))
    claim = "# The same as dockerserve-base.yml, the only difference is --max-running-requests 4.\n"
    path = tmp_path / "dockerserve-new.yml"
    for flags, expected in (
        ("--tp 1 --max-running-requests 4", set()),
        ("--tp 1 --max-running-requests 4 --mem-fraction-static 0.6", {"comment-claims"}),
    ):
        files = one(flags, port=30010)
        path.write_text(claim + json.dumps(files["compose.yml"]))
        findings = check(read_compose(path))
        assert rules(findings) == expected
        assert all("--mem-fraction-static" in finding.reason for finding in findings)


def test_two_files_of_one_set_need_projects_of_their_own(tmp_path: Path) -> None:
    low, high = service("--tp 4", gpus=(0, 1, 2, 3)), service("--tp 4", gpus=(4, 5, 6, 7))
    high["command"] = high["command"].replace("30000", "30001")
    files = {
        "dockerserve-x.yml": {"services": {"e": low}},
        "dockerserve-x-b4.yml": {"services": {"e": high}},
    }
    assert rules(found(tmp_path, files)) == {"project-name", "set-project"}
    files["dockerserve-x-b4.yml"] = {"services": {"f": high}}
    assert rules(found(tmp_path, files)) == {"project-name"}
    files["dockerserve-x-b4.yml"] = {"name": "b4", "services": {"e": high}}
    assert rules(found(tmp_path, files)) == {"project-name"}


def test_files_that_nothing_names_as_a_set_are_one_when_asked(tmp_path: Path) -> None:
    files = {
        "one.yml": compose("one", e=service(gpus=(0,))),
        "other.yml": compose("other", e=service(gpus=(0,), port=30001)),
    }
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    read = read_files([tmp_path / name for name in files], {})
    assert check_files(read) == []
    [finding] = check_files(read, together=True)
    assert (finding.rule, finding.path.name) == ("gpu-shared", "other.yml")
    assert finding.reason == "with one.yml: GPU 0 is already taken by e"


@pytest.mark.parametrize(
    "command",
    [
        "sglang serve --tp 4 --port 30000",
        ["sglang", "serve", "--tp", "4"],
        "python -m sglang.launch_server --tp=4",
        ["python3", "-u", "-m", "sglang.launch_server", "--tensor-parallel-size", "4"],
        ["bash", "-c", "cd /x && exec sglang serve \\\n  --tp 4 \\\n  --port 30000"],
        ["/bin/sh", "-ec", "export T=4; python3 -m sglang.launch_server --tp $$T 2>&1 | tee /l"],
        ["sh", "-c", "set -e\nulimit -l unlimited\nsglang serve --tp ${TP:-4}\n"],
        "env A=1 numactl -N 0 sglang serve --tp ${TP}",
        "bash -lc 'nohup sglang serve --tp 4 > /log'",
    ],
)
def test_an_engine_is_found_however_its_command_is_written(tmp_path: Path, command: object) -> None:
    """Two GPUs for tp 4 is told for every spelling."""
    content = one(gpus=(0, 1))["compose.yml"]
    content["services"]["e"]["command"] = command
    path = tmp_path / "compose.yml"
    path.write_text(json.dumps(content))
    assert rules(check(read_compose(path, {"TP": "4"}))) == {"gpu-count"}


def test_anchors_merges_and_extends_are_followed(tmp_path: Path) -> None:
    (tmp_path / "base.yml").write_text(
        f"services:\n  base:\n    image: {IMAGE}\n    network_mode: host\n"
        "    volumes: ['/srv:/models']\n    environment: {CUDA_VISIBLE_DEVICES: '0,1'}\n"
    )
    path = tmp_path / "compose.yml"
    text = """
name: p
x-all: &all
  extends: {file: base.yml, service: base}
services:
  a:
    <<: *all
    command: sglang serve --model-path /models/m --tp 2
  b:
    extends: a
    command: sglang serve --model-path /models/m --tp 2 --port 30001
"""
    path.write_text(text)
    assert rules(check(read_compose(path))) == {"gpu-shared"}
    path.write_text(text + "    environment: {CUDA_VISIBLE_DEVICES: '2,3'}\n")
    assert check(read_compose(path)) == []


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


def test_the_rendered_files_of_this_repository_have_no_errors() -> None:
    paths = sorted(ROOT.glob("deploy/*/dockerserve-*.yml"))
    found = errors(check_files(read_files(paths, {})))
    # The GPU site asks for features that the engine does not have yet: these findings
    # name them, and nobody can start it before.
    lacks = [f for f in found if f.rule == "engine-flags" and f.path.parent.name == "b300-ds41"]
    assert [finding for finding in found if finding not in lacks] == []
