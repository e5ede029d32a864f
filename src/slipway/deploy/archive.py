"""The archive's bytes: equal files give equal bytes, and nothing hostile gets out of one.

A `.tar.zst` with one folder, plain files only, and a `SHA256SUMS` over all the others.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

from slipway.errors import IntegrityError, StorageError, UsageError

SUMS = "SHA256SUMS"
SUFFIX = ".tar.zst"
# Text files of some KiB; the limits bound what a hostile archive can cost.
MAX_FILES = 200
MAX_BYTES = 16 << 20
_LEVEL = 19
# `.env` is the operator's.
_RESERVED = (".", "..", ".env")
_FILE_NAME = re.compile(r"[A-Za-z0-9._-]+")


def pack(folder: str, files: Mapping[str, bytes], mtime: int) -> bytes:
    """An archive of `files` below `folder/`, with their sums.

    Args:
        folder: the one folder at the top.
        files: content by name; names have no slash.
        mtime: seconds since 1970 that every member carries.
    """
    import zstandard

    sums = "".join(
        f"{hashlib.sha256(content).hexdigest()}  {name}\n"
        for name, content in sorted(files.items())
    )
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        top = tarfile.TarInfo(folder)
        top.type, top.mode, top.mtime = tarfile.DIRTYPE, 0o755, mtime
        archive.addfile(top)
        for name, content in sorted({**files, SUMS: sums.encode()}.items()):
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size, member.mode, member.mtime = len(content), 0o644, mtime
            archive.addfile(member, io.BytesIO(content))
    compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True, threads=0)
    return compressor.compress(tar.getvalue())


def write(path: Path, content: bytes) -> None:
    """Write a file so that nobody ever sees half of it; its mode is 0644.

    Raises:
        StorageError: the disk refused; nothing is left behind.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}", _room(error)) from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(file.fileno(), 0o644)
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}", _room(error)) from None
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def _room(error: OSError) -> str:
    import errno

    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return "make room on the disk, then run it again" if full else "check the folder's permissions"


def read(path: Path) -> tuple[str, dict[str, bytes]]:
    """The folder's name and the files of an archive, all sums verified.

    Raises:
        UsageError: there is no such file.
        IntegrityError: it is no such archive, is damaged, holds anything but plain files in one
            folder, or a sum does not match.
    """

    def bad(why: str) -> IntegrityError:
        return IntegrityError(
            f"{path} is no archive of slipway: {why}", "fetch it again, or pack it anew"
        )

    import zstandard

    files: dict[str, bytes] = {}
    folder = ""
    try:
        with path.open("rb") as raw:
            reader = zstandard.ZstdDecompressor(max_window_size=MAX_BYTES).stream_reader(raw)
            content = reader.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist", "slipway deploy pack NAME writes one") from None
    except zstandard.ZstdError as error:
        raise bad(f"not zstd ({error})") from None
    if len(content) > MAX_BYTES:
        raise bad(f"it unpacks to more than {MAX_BYTES >> 20} MiB")
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
            for member in archive:
                top, _, name = member.name.partition("/")
                if not _FILE_NAME.fullmatch(top) or top in (".", ".."):
                    raise bad(f"member {member.name!r} leaves its folder")
                if folder and top != folder:
                    raise bad(f"members lie in more than one folder ({folder}, {top})")
                folder = top
                if member.isdir() and not name:
                    continue
                if not member.isreg() or not _FILE_NAME.fullmatch(name) or name in _RESERVED:
                    raise bad(f"member {member.name!r} is no plain file of that folder")
                if name in files or len(files) >= MAX_FILES:
                    raise bad(f"member {member.name!r} is there twice, or there are too many")
                opened = archive.extractfile(member)
                assert opened is not None  # a regular file always opens
                files[name] = opened.read()
    except tarfile.TarError as error:
        raise bad(f"not a tar ({error})") from None
    lines = files.get(SUMS, b"").decode("utf-8", "replace").splitlines()
    listed = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    for name, data in files.items():
        if name != SUMS and listed.pop(name, "") != hashlib.sha256(data).hexdigest():
            raise bad(f"{name} is not what {SUMS} says")
    if listed or SUMS not in files:
        raise bad(f"{', '.join(listed) or SUMS} is missing")
    return folder, files


def unpack(path: Path, into: Path) -> Path:
    """Write an archive's files to `into`, replacing those of an older one; `.env` stays.

    Raises:
        UsageError, IntegrityError: as `read`.
        StorageError: the disk refused.
    """
    _, files = read(path)
    for name, content in files.items():
        write(into / name, content)
    return into
