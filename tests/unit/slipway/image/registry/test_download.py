"""Downloads: continued after a drop, checked at the end, never a byte too many."""

from __future__ import annotations

import hashlib
import os

import pytest

from slipway.errors import IntegrityError, NetworkError, RegistryError, UsageError
from slipway.image.descriptor import LAYER_GZIP, Descriptor
from slipway.image.registry import Repository
from support.registries import MemoryRegistry

MIB = 1 << 20
DATA = os.urandom(5 * MIB + 3)


@pytest.fixture
def blob(server: MemoryRegistry) -> Descriptor:
    return Descriptor(LAYER_GZIP, server.put_blob("team/keel", DATA), len(DATA))


def read(repository: Repository, blob: Descriptor) -> bytes:
    with repository.open(blob) as stream:
        return stream.read()


def test_a_blob_comes_whole_and_its_end_stays_the_end(
    server: MemoryRegistry, repository: Repository, blob: Descriptor
) -> None:
    with repository.open(blob) as stream:
        assert b"".join(iter(lambda: stream.read(100_000), b"")) == DATA
        assert stream.read() == b""
    assert len(server.seen) == 1


def test_a_drop_is_continued_by_range(
    server: MemoryRegistry, repository: Repository, blob: Descriptor
) -> None:
    server.fault(method="GET", truncate=3 * MIB)
    assert read(repository, blob) == DATA
    start = int(server.seen[-1].headers["range"].removeprefix("bytes=").removesuffix("-"))
    assert 2 * MIB < start <= 3 * MIB


def test_a_server_without_ranges_is_read_from_the_start_again(
    server: MemoryRegistry, repository: Repository, blob: Descriptor
) -> None:
    server.resumes = False
    server.fault(method="GET", truncate=3 * MIB)
    assert read(repository, blob) == DATA


def test_drops_without_progress_end(
    server: MemoryRegistry, repository: Repository, blob: Descriptor
) -> None:
    server.fault(method="GET", truncate=0, times=99)
    with pytest.raises(NetworkError, match=blob.digest):
        read(repository, blob)
    assert len(server.seen) == 5


def test_drops_with_progress_are_survived(
    server: MemoryRegistry, repository: Repository, blob: Descriptor
) -> None:
    server.fault(method="GET", truncate=MIB // 2, times=9)
    assert read(repository, blob) == DATA


def test_damaged_bytes_are_refused(
    server: MemoryRegistry, repository: Repository, blob: Descriptor
) -> None:
    server.fault(method="GET", corrupt=True)
    with pytest.raises(IntegrityError, match=f"{blob.digest} came with the bytes of sha256:"):
        read(repository, blob)


@pytest.mark.parametrize("size", [len(DATA) - 1, len(DATA) + 1, 10])
def test_a_size_that_is_a_lie_is_refused(
    server: MemoryRegistry, repository: Repository, blob: Descriptor, size: int
) -> None:
    with pytest.raises(IntegrityError, match=f"{size} bytes"):
        read(repository, Descriptor(LAYER_GZIP, blob.digest, size))


def test_a_stream_without_a_length_is_not_read_past_the_size(
    server: MemoryRegistry, repository: Repository
) -> None:
    digest = f"sha256:{hashlib.sha256(b'abc').hexdigest()}"
    server.fault(
        status=200,
        headers={"Transfer-Encoding": "chunked", "Content-Length": "x"},
        body=b"a\r\n0123456789\r\n" * 100 + b"0\r\n\r\n",
    )
    with pytest.raises(IntegrityError, match="longer than its 3 bytes"):
        read(repository, Descriptor(LAYER_GZIP, digest, 3))


def test_another_part_than_asked_for_is_refused(
    server: MemoryRegistry, repository: Repository, blob: Descriptor
) -> None:
    server.fault(method="GET", truncate=3 * MIB)
    server.fault(method="GET", status=206, headers={"Content-Range": "bytes 0-9/10"})
    server.faults[1].after = 0
    with pytest.raises(IntegrityError):
        read(repository, blob)


def test_a_blob_that_is_not_there_is_said_so(repository: Repository) -> None:
    absent = Descriptor(LAYER_GZIP, f"sha256:{'0' * 64}", 3)
    with pytest.raises(RegistryError, match="BLOB_UNKNOWN"):
        read(repository, absent)


@pytest.mark.parametrize("digest", ["sha256:../../etc/passwd", "md5:00", "sha256:" + "A" * 64, ""])
def test_what_is_no_digest_is_never_asked_for(
    server: MemoryRegistry, repository: Repository, digest: str
) -> None:
    with pytest.raises(UsageError):
        repository.open(Descriptor(LAYER_GZIP, digest, 3))
    assert server.seen == []
