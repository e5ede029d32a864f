"""The thirty-one files that operators ran: every real mistake in them, and nothing else.

The files are another project's and are not part of the repository; without them this is skipped.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest

from slipway.deploy.check import Finding, check_files, read_files
from slipway.deploy.scene import Scene
from slipway.deploy.sets import named_sets

ROOT = Path(__file__).resolve().parents[4]
SEED = next(
    (
        folder / "shared" / "seed-deploy"
        for folder in ROOT.parents
        if (folder / "shared" / "seed-deploy").is_dir()
    ),
    Path("/nonexistent"),
)
pytestmark = pytest.mark.skipif(not SEED.is_dir(), reason="the seed's files are not here")

# rule -> file without `dockerserve-` and `.yml` -> services
SINGLE = {
    "published-port": {"cpdspark-nr-b4": ["sglang"]},
    "cp-dspark-replay": {"cpdspark": ["sglang"]},
    "bootstrap-port": {"p": ["sglang"]},
    "pair-bootstrap": {"3cp2-pd": ["d"]},
    "pair-image": {"pd-d": ["sglang"]},
    "name-claims": {"dp4test": ["sglang"]},
    "comment-claims": {"tp2": ["", ""]},
    "cp-idle-check": {
        "3cp2-pd": ["p1", "p2", "p3"],
        "cpdspark-l3": ["sglang"],
        "cpdspark-l3-b4": ["sglang"],
        "cpdspark-l3-nocap": ["sglang"],
        "cpdspark-l3-b4-nocap": ["sglang"],
    },
    "hot-patch": {
        "cp2x4": ["a", "b", "c", "d"],
        "tp2": ["tp2", "b"],
        "dp2": ["dp2"],
        "pd2-p": ["sglang"],
        "pd2-p-r1": ["sglang"],
        "pd2-p-r2": ["sglang"],
        "pd2-d": ["sglang"],
        "pd2-d-r2": ["sglang"],
    },
}
# Files of one set: one project and one service, so that the second replaces the first.
SETS = [
    ("pd-p", "pd-d"),
    ("pd-p-dp", "pd-d"),
    ("pd-p-vision", "pd-d-vision"),
    ("pd2-p", "pd2-d"),
    ("pd2-p-r1", "pd2-d"),
    ("pd2-p-r2", "pd2-d-r2"),
    ("b4", ""),
    ("cpdspark-l3-b4-nocap", "cpdspark-l3-nocap"),
    ("cpdspark-l3-b4", "cpdspark-l3"),
    ("cpdspark-nr-b4", "cpdspark-nr"),
]


def short(path: Path) -> str:
    return path.stem.removeprefix("dockerserve").removeprefix("-")


@pytest.fixture(scope="module")
def found() -> list[Finding]:
    return check_files(read_files(sorted(SEED.glob("*.yml")), {}))


def test_every_real_mistake_is_found_and_nothing_else(found: list[Finding]) -> None:
    files = read_files(sorted(SEED.glob("*.yml")), {})
    seen = [each for file in files for each in Scene((file,)).services]
    assert (len(files), len(seen)) == (31, 38)
    everyone = sorted((short(each.file.path), each.name) for each in seen)
    pd = [pair for pair in everyone if pair[0].startswith("pd") or pair[0] == "3cp2-pd"]

    by_rule: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for finding in found:
        by_rule[finding.rule].append((short(finding.path), finding.service))
    expected = {
        rule: sorted((file, service) for file, services in places.items() for service in services)
        for rule, places in SINGLE.items()
    }
    # What all of them do: no image by digest, privileged, no project, all GPUs for some.
    expected["image-pinned"] = expected["privileged"] = everyone
    expected["project-name"] = sorted((short(file.path), "") for file in files)
    expected["gpu-all"] = [pair for pair in everyone if pair[0] not in ("cp8", "dp8")]
    # Prefill and decode move their cache by NVLink and need the host's ipc; the others do not.
    expected["ipc-host"] = [pair for pair in everyone if pair not in pd]
    expected["shm-size"] = pd
    expected["set-project"] = sorted((second, "sglang") for _, second in SETS)
    assert {rule: sorted(places) for rule, places in by_rule.items()} == expected


def test_which_files_are_one_set(found: list[Finding]) -> None:
    files = read_files(sorted(SEED.glob("*.yml")), {})
    sets = {frozenset(short(file.path) for file in group) for group in named_sets(files)}
    assert sets == {frozenset(pair) for pair in SETS}


def test_the_three_that_cannot_work_say_why(found: list[Finding]) -> None:
    errors = {short(each.path): each for each in found if each.severity.value == "error"}
    assert set(errors) == {"cpdspark-nr-b4", "cpdspark", "p"}
    assert errors["cpdspark-nr-b4"].reason == (
        "port 30001 is published, but the engine listens on 30000"
    )
    assert "crash" in errors["cpdspark"].reason
    assert "8998" in errors["p"].reason


def test_each_file_by_itself_gives_what_it_gives_among_all(found: list[Finding]) -> None:
    """But for what needs another file to be known: sets, and how many GPUs the host has."""
    between = {"set-project", "pair-image"}
    for path in sorted(SEED.glob("*.yml")):
        alone = {
            (each.rule, each.service, each.reason) for each in check_files(read_files([path], {}))
        }
        among = {
            (each.rule, each.service, each.reason)
            for each in found
            if each.path == path and each.rule not in between
        }
        if path.name == "dockerserve.yml":  # tp 4, and nothing in it says that there are eight
            among = {each for each in among if each[0] != "gpu-all"}
        assert alone == among, path.name


def test_the_whole_process_takes_under_a_second() -> None:
    words = [sys.executable, "-m", "slipway", "deploy", "check", "--json"]
    words += map(str, sorted(SEED.glob("*.yml")))
    times = []
    for _ in range(3):
        began = time.perf_counter()
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
        times.append(time.perf_counter() - began)
        assert done.returncode == 11, done.stderr
        assert len(json.loads(done.stdout)) > 200
    assert min(times) < 1.0
