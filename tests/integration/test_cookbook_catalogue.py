"""The image catalogue, from a real registry."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from slipway.build.plan import DEPENDENCY_KEY
from slipway.cli import command as program
from slipway.cookbook.catalogue import age, entries, page, pinned_by
from slipway.deploy import archive
from slipway.image.model import Image
from slipway.image.registry import Registry, push_image
from support.docker_registry import docker_registry

ROOT = Path(__file__).resolve().parents[2]
NOW = datetime.datetime(2026, 12, 1, 12, 0, tzinfo=datetime.UTC)


def image(commit: str, created: str, key: str) -> Image:
    """An image without layers that says of itself what our builds say."""
    labels = {
        "org.opencontainers.image.revision": commit,
        "org.slipway.variant": "cpu",
        DEPENDENCY_KEY: key,
    }
    return Image(
        {"os": "linux", "architecture": "amd64", "config": {"Labels": labels}}, (), created=created
    )


def test_every_tag_is_there_with_what_its_image_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    images = {
        "main-aaaaaaaaa-ci-20261129-1000": image("a" * 40, "2026-11-29T10:00:00Z", "k1"),
        "main-bbbbbbbbb-ci-20261201-1100": image("b" * 40, "2026-12-01T11:00:00Z", "k1"),
        "main-ccccccccc-ci-20261201-1130": image("c" * 40, "2026-12-01T11:30:00Z", "k2"),
    }
    with docker_registry(tmp_path / "registry") as host:
        registry = Registry(host)
        repository = registry.repository("team/keel")
        assert entries(repository, {}) == []
        for tag, one in images.items():
            push_image(one, repository, [tag])
        digest = images["main-bbbbbbbbb-ci-20261201-1100"].digest
        compose = f"services: {{engine: {{image: '{host}/team/keel@{digest}'}}}}\n".encode()
        packed = archive.pack("local-cpu-single", {"dockerserve.yml": compose}, 0)
        (tmp_path / "local-cpu-single-x.tar.zst").write_bytes(packed)
        (tmp_path / "foreign.tar.zst").write_bytes(b"no archive")
        rows = entries(repository, pinned_by(tmp_path))
        registry.close()
        result = CliRunner().invoke(
            program, ["cookbook", "build", "--output", str(tmp_path / "site"),
                      "--images", f"{host}/team/keel"],
        )  # fmt: skip
        assert result.exit_code == 0, result.output
    assert [(row.tag, row.plan) for row in rows] == [
        ("main-ccccccccc-ci-20261201-1130", "full"),
        ("main-bbbbbbbbb-ci-20261201-1100", "fast"),
        ("main-aaaaaaaaa-ci-20261129-1000", "full"),
    ]
    assert [row.archives for row in rows] == [(), ("local-cpu-single-x",), ()]
    assert {row.digest for row in rows} == {one.digest for one in images.values()}
    assert all(row.variant == "cpu" and row.size > 100 for row in rows)
    text = page("registry.example/team/keel", rows, NOW)
    lines = [line for line in text.splitlines() if line.startswith("| `main-")]
    assert "| `bbbbbbbbb` | 1 h | cpu |" in lines[1]
    assert "| 2 days |" in lines[2]
    html = (tmp_path / "site/reference/images.html").read_text(encoding="utf-8")
    assert html.count("main-bbbbbbbbb-ci-20261201-1100") == 1


@pytest.mark.parametrize(
    ("created", "text"),
    [
        ("2026-12-01T11:59:30Z", "0 min"),
        ("2026-12-01T01:00:00+00:00", "11 h"),
        ("2026-10-02T12:00:00Z", "60 days"),
        ("2027-01-01T00:00:00Z", "0 min"),
        ("", ""),
        ("yesterday", ""),
    ],
)
def test_ages(created: str, text: str) -> None:
    assert age(created, NOW) == text
