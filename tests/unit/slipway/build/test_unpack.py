"""Wheels become entries that pip would recognise; hostile ones are refused by name."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from slipway.build.matrix import load
from slipway.build.unpack import launchers, unpack
from slipway.errors import IntegrityError
from slipway.image.layer import LayerWriter
from support.project import Project, make_wheel

SITE = "opt/tiny/venv/lib/python3.11/site-packages"


def unpacked(project: Project, *wheels: Path) -> dict[str, tuple[bytes, int]]:
    matrix = load(project.root)
    sink = io.BytesIO()
    writer = LayerWriter(sink, ["opt/tiny/venv"])
    unpack(wheels, matrix.engine, matrix.variant("cpu"), writer)
    writer.finish()
    sink.seek(0)
    with tarfile.open(fileobj=sink) as tar:
        return {m.name: (tar.extractfile(m).read(), m.mode) for m in tar if m.isfile()}  # type: ignore[union-attr]


def test_files_launchers_and_data_lie_where_pip_puts_them(project: Project, tmp_path: Path) -> None:
    wheel = make_wheel(
        tmp_path,
        "pkg",
        "1.0",
        {
            "pkg/__init__.py": b"",
            "pkg-1.0.data/scripts/tool": b"#!python\nprint(1)\n",
            "pkg-1.0.data/data/share/pkg/x": b"x",
            "pkg-1.0.data/headers/pkg.h": b"h",
        },
        scripts={"pkg-run": "pkg:main"},
    )
    found = unpacked(project, wheel)
    assert found[f"{SITE}/pkg/__init__.py"] == (b"", 0o644)
    assert found["opt/tiny/venv/share/pkg/x"] == (b"x", 0o644)
    assert found["opt/tiny/venv/include/site/python3.11/pkg/pkg.h"] == (b"h", 0o644)
    script, mode = found["opt/tiny/venv/bin/tool"]
    assert (script, mode) == (b"#!/opt/tiny/venv/bin/python\nprint(1)\n", 0o755)
    launcher, mode = found["opt/tiny/venv/bin/pkg-run"]
    assert launcher.startswith(b"#!/opt/tiny/venv/bin/python\n")
    assert (b"from pkg import main" in launcher, mode) == (True, 0o755)
    assert found[f"{SITE}/pkg-1.0.dist-info/INSTALLER"][0] == b"slipway\n"


def test_record_lists_every_file_with_its_hash(project: Project, tmp_path: Path) -> None:
    wheel = make_wheel(
        tmp_path, "pkg", "1.0", {"pkg/__init__.py": b"V = 1\n"}, scripts={"pkg-run": "pkg:main"}
    )
    found = unpacked(project, wheel)
    rows = list(csv.reader(io.StringIO(found[f"{SITE}/pkg-1.0.dist-info/RECORD"][0].decode())))
    listed = set()
    for path, digest, size in rows:
        name = str(Path("/", SITE, path).resolve()).lstrip("/")
        listed.add(name)
        if digest:
            data = found[name][0]
            wanted = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            assert (digest, size) == (f"sha256={wanted}", str(len(data)))
    assert listed == set(found)


def rewrite(wheel: Path, name: str, data: bytes, attributes: int = 0) -> Path:
    """Add a member to a wheel behind its RECORD's back."""
    with zipfile.ZipFile(wheel, "a") as archive:
        info = zipfile.ZipInfo(name)
        info.external_attr = attributes
        archive.writestr(info, data)
    return wheel


@pytest.mark.parametrize(
    "name", ["../../../../etc/cron.d/x", "/etc/passwd", "pkg/../../x", "pkg\\..\\x"]
)
def test_a_path_that_leaves_the_folder_is_refused(
    project: Project, tmp_path: Path, name: str
) -> None:
    wheel = rewrite(make_wheel(tmp_path, "evil", "1.0", {"pkg/a.py": b""}), name, b"boo")
    with pytest.raises(IntegrityError, match=r"evil-1.0-py3-none-any.whl has an entry"):
        unpacked(project, wheel)


def test_a_path_that_leaves_through_the_record_is_refused(project: Project, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "evil", "1.0", {"evil-1.0.data/scripts/../../../x": b"boo"})
    with pytest.raises(IntegrityError, match=r"evil-1\.0"):
        unpacked(project, wheel)


def test_a_link_is_refused(project: Project, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "evil", "1.0", {})
    rewrite(wheel, "pkg/link", b"/etc/passwd", (stat.S_IFLNK | 0o777) << 16)
    with pytest.raises(IntegrityError, match=r"evil-1.0.*holds a link: 'pkg/link'"):
        unpacked(project, wheel)


def test_a_bomb_is_refused(project: Project, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "bomb", "1.0", {"zeros": bytes(64 << 20)})
    with pytest.raises(IntegrityError, match=r"bomb-1.0.*times"):
        unpacked(project, wheel)


def test_two_wheels_with_one_file_are_refused(project: Project, tmp_path: Path) -> None:
    wheels = [make_wheel(tmp_path, name, "1.0", {"same.py": b""}) for name in ("a", "b")]
    with pytest.raises(IntegrityError, match=r"same.py"):
        unpacked(project, *wheels)


@pytest.mark.parametrize("damage", ["cut", "text"])
def test_a_damaged_wheel_is_refused_by_name(project: Project, tmp_path: Path, damage: str) -> None:
    wheel = make_wheel(tmp_path, "torn", "1.0", {"torn.py": b"x" * 9999})
    wheel.write_bytes(wheel.read_bytes()[:-200] if damage == "cut" else b"no zip at all")
    with pytest.raises(IntegrityError, match=r"torn-1.0-py3-none-any.whl is not a usable wheel"):
        unpacked(project, wheel)


def test_launchers_are_the_engines_own(project: Project) -> None:
    engine = load(project.root).engine
    table = {"project": {"scripts": {"tiny": "tiny.cli:main", "other": "slipway.cli:main"}}}
    [launcher] = launchers(table, engine)
    assert launcher.path == "opt/tiny/venv/bin/tiny"
    assert launcher.executable
