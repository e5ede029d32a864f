"""The doctor says what is missing and why it matters, quickly, whatever is broken."""

from __future__ import annotations

import http.server
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipway.doctor import NEEDS, PATIENCE, PROBES, Finding, Place, examine, lacking

ROOT = Path(__file__).resolve().parents[3]


def doctor(*words: str, cwd: Path = ROOT, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "slipway", "doctor", *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **env},
        capture_output=True,
        text=True,
        timeout=60,
    )


def look(name: str, place: Place) -> Finding:
    return next(finding for finding in examine(place) if finding.name == name)


def test_where_no_program_is_found_each_is_missing_with_a_way_to_get_it(tmp_path: Path) -> None:
    done = doctor("--json", cwd=tmp_path, PATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    findings = {entry["name"]: entry for entry in json.loads(done.stdout)}
    assert list(findings) == [probe.name for probe in PROBES]
    for name in ("git", "docker", "mmdebstrap", "buildx", "buildah", "docker-registry"):
        assert findings[name]["ok"] is False
        assert findings[name]["detail"] == "not installed"
        assert findings[name]["needed_for"]
        assert "apt-get install" in findings[name]["get"]
    assert findings["python"]["ok"] is True


def test_a_purpose_that_lacks_something_exits_with_the_tools_code_and_names_it(
    tmp_path: Path,
) -> None:
    done = doctor("--need", "up", PATH=str(tmp_path))
    assert done.returncode == 12
    assert done.stderr.startswith("error: up needs docker")
    assert "fix:   apt-get install docker.io" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_purpose_that_has_all_it_needs_exits_with_0() -> None:
    done = doctor("--need", "up")
    if done.returncode == 12:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0
    assert "ok       docker" in done.stdout


def test_an_engine_that_never_answers_costs_seconds_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "docker.sock"))
        silent.listen()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
        began = time.monotonic()
        found = look("docker", Place(tmp_path))
        assert time.monotonic() - began < 3 * PATIENCE
    if found.detail == "not installed":
        pytest.skip("the docker command is not installed")
    assert (found.ok, found.detail) == (False, "no answer within 3 s")


@pytest.fixture
def server() -> Iterator[tuple[str, list[int]]]:
    """A loopback server that answers `/v2/` with the first status of a list."""
    statuses = [200]

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(statuses[0] if self.path == "/v2/" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        yield f"127.0.0.1:{listening.server_address[1]}", statuses
        listening.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("status", "ok", "says"),
    [(200, True, "answers 200"), (401, True, "asks for a login"), (500, False, "answers 500")],
)
def test_a_registry_is_there_when_it_speaks_the_protocol(
    server: tuple[str, list[int]], tmp_path: Path, status: int, ok: bool, says: str
) -> None:
    address, statuses = server
    statuses[0] = status
    found = look("registry", Place(tmp_path, address))
    assert found.ok is ok
    assert says in found.detail


def test_a_registry_that_is_not_there_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        found = look("registry", Place(tmp_path, f"127.0.0.1:{port}"))
    assert found.ok is False
    assert f"127.0.0.1:{port}/v2/ cannot be reached" in found.detail


def test_no_registry_is_neither_there_nor_missing(tmp_path: Path) -> None:
    assert look("registry", Place(tmp_path)).ok is None


@pytest.mark.parametrize(
    ("wheel", "locked", "ok"),
    [
        ("torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl", "2.13.0+cpu", True),
        ("torch-2.12.0+cpu-cp311-cp311-linux_x86_64.whl", "2.13.0+cpu", False),
        ("torch-2.13.0-cp311-cp311-linux_x86_64.whl", "2.13.0+cpu", False),
        ("torch-2.12.0+cpu-cp311-cp311-linux_x86_64.whl", "", True),
        ("torchvision-0.1+cpu-cp311-cp311-linux_x86_64.whl", "", False),
    ],
)
def test_torch_is_found_where_pip_is_told_to_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wheel: str, locked: str, ok: bool
) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / wheel).touch()
    lock = tmp_path / "docker" / "locks" / "cpu.txt"
    if locked:
        lock.parent.mkdir(parents=True)
        lock.write_text(f"numpy==2.0\ntorch=={locked} \\\n    --hash=sha256:0\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    assert look("torch", Place(tmp_path)).ok is ok


def test_an_index_on_the_network_is_not_asked_and_its_address_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://name:password@index.invalid/simple")
    found = look("torch", Place(tmp_path))
    assert found.ok is None
    assert "password" not in found.detail
    assert "index.invalid" not in found.detail


def finding(name: str, ok: bool | None) -> Finding:
    return Finding(name, ok, "", "", "")


@pytest.mark.parametrize(
    ("mmdebstrap", "registry", "missing"),
    [
        (True, None, []),
        (False, True, []),
        (False, None, ["mmdebstrap"]),
        (False, False, ["mmdebstrap"]),
    ],
)
def test_of_two_ways_to_a_base_one_is_enough(
    mmdebstrap: bool, registry: bool | None, missing: list[str]
) -> None:
    others = [finding(probe.name, True) for probe in PROBES]
    found = [f for f in others if f.name not in ("mmdebstrap", "registry")]
    found += [finding("mmdebstrap", mmdebstrap), finding("registry", registry)]
    assert [f.name for f in lacking(found, "image")] == missing


def test_what_could_not_be_looked_at_is_not_called_missing() -> None:
    found = [finding(probe.name, None if probe.name == "torch" else True) for probe in PROBES]
    assert lacking(found, "image") == []


def test_every_need_names_probes() -> None:
    names = {probe.name for probe in PROBES}
    assert {name for groups in NEEDS.values() for group in groups for name in group} <= names
