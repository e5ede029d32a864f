"""Archives: the same bytes from the same files, and nothing hostile taken from one."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest
import zstandard

from slipway.deploy import archive
from slipway.errors import IntegrityError, StorageError, UsageError
from support.services import require_program, tiny_disk

FILES = {"README.md": b"# hello\n", "a.yml": b"name: a\n", ".env.example": b"X=1\n"}
MTIME = 1_700_000_000


def test_the_same_files_give_the_same_bytes_in_any_order() -> None:
    first = archive.pack("a-1", FILES, MTIME)
    assert archive.pack("a-1", dict(reversed(FILES.items())), MTIME) == first


def test_members_are_sorted_owned_by_root_and_carry_the_given_time() -> None:
    content = zstandard.ZstdDecompressor().decompress(archive.pack("a-1", FILES, MTIME))
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        members = tar.getmembers()
    names = [member.name for member in members]
    assert names == ["a-1", *sorted(f"a-1/{name}" for name in (*FILES, "SHA256SUMS"))]
    assert {(m.uid, m.gid, m.uname, m.gname, m.mtime) for m in members} == {(0, 0, "", "", MTIME)}
    assert {m.mode for m in members if m.isfile()} == {0o644}


def test_tar_unpacks_it_and_sha256sum_verifies_it(tmp_path: Path) -> None:
    require_program("zstd", "zstd")
    path = tmp_path / "a.tar.zst"
    archive.write(path, archive.pack("a-1", FILES, MTIME))
    subprocess.run(["tar", "--zstd", "-xf", path, "-C", tmp_path], check=True)
    subprocess.run(["sha256sum", "--strict", "-c", "SHA256SUMS"], cwd=tmp_path / "a-1", check=True)


def test_it_reads_back_and_unpacks_over_an_older_one(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.zst"
    archive.write(path, archive.pack("a-1", FILES, MTIME))
    folder, files = archive.read(path)
    assert folder == "a-1"
    assert {name: files[name] for name in FILES} == FILES
    into = tmp_path / "run"
    into.mkdir()
    (into / ".env").write_text("X=mine")
    (into / "a.yml").write_text("old")
    archive.unpack(path, into)
    assert (into / "a.yml").read_bytes() == FILES["a.yml"]
    assert (into / ".env").read_text() == "X=mine"


def hostile(tmp_path: Path, *members: tuple[str, bytes, int, str]) -> Path:
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as writer:
        for name, kind, size, link in members:
            info = tarfile.TarInfo(name)
            info.type, info.size, info.linkname = kind, size, link
            writer.addfile(info, io.BytesIO(b"x" * size))
    path = tmp_path / "hostile.tar.zst"
    path.write_bytes(zstandard.compress(tar.getvalue()))
    return path


REG, DIR, SYM, LNK, CHR = (
    tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE
)  # fmt: skip


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ([("../evil", REG, 1, "")], "leaves its folder"),
        ([("/etc/passwd", REG, 1, "")], "leaves its folder"),
        ([("a/../../evil", REG, 1, "")], "no plain file"),
        ([("a/deep/er", REG, 1, "")], "no plain file"),
        ([("a/link", SYM, 0, "/etc/passwd")], "no plain file"),
        ([("a/link", LNK, 0, "/etc/passwd")], "no plain file"),
        ([("a/device", CHR, 0, "")], "no plain file"),
        ([("a/..", REG, 1, "")], "no plain file"),
        ([("a/.env", REG, 1, "")], "no plain file"),
        ([("a/x", REG, 1, ""), ("b/x", REG, 1, "")], "more than one folder"),
        ([("a/x", REG, 1, ""), ("a/x", REG, 1, "")], "there twice"),
        ([("a/x", REG, 1, "")], "x is not what SHA256SUMS says"),
        ([("a", DIR, 0, "")], "SHA256SUMS is missing"),
        ([(f"a/f{index}", REG, 0, "") for index in range(300)], "too many"),
        ([("a/big", REG, archive.MAX_BYTES + 1, "")], "unpacks to more than 16 MiB"),
    ],
)
def test_a_hostile_archive_is_refused_and_nothing_is_written(
    tmp_path: Path, members: list[tuple[str, bytes, int, str]], says: str
) -> None:
    path = hostile(tmp_path, *members)
    into = tmp_path / "inside" / "run"
    with pytest.raises(IntegrityError, match=says):
        archive.unpack(path, into)
    assert {entry.name for entry in tmp_path.rglob("*")} == {"hostile.tar.zst"}


def test_damage_is_found(tmp_path: Path) -> None:
    good = archive.pack("a-1", FILES, MTIME)
    path = tmp_path / "a.tar.zst"
    for bad in (good[:-9], b"not zstd at all", good[:40] + bytes([good[40] ^ 1]) + good[41:], b""):
        path.write_bytes(bad)
        with pytest.raises(IntegrityError, match="is no archive of slipway"):
            archive.read(path)


def test_a_missing_archive_says_how_one_is_made(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        archive.read(tmp_path / "none.tar.zst")
    assert "slipway deploy pack" in caught.value.remedy


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    with tiny_disk(tmp_path / "small", "64k") as small:
        archive.write(small / "kept", b"old")
        with pytest.raises(StorageError) as caught:
            archive.write(small / "kept", os.urandom(1 << 20))
        assert os.strerror(errno.ENOSPC) in caught.value.what
        assert "make room" in caught.value.remedy
        assert [entry.name for entry in small.iterdir()] == ["kept"]
        assert (small / "kept").read_bytes() == b"old"
