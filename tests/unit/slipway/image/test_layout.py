"""The layout store: nothing half-written is visible, names are immutable unless they may move."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipway.errors import IntegrityError, StorageError, TagTakenError
from slipway.image.descriptor import LAYER_GZIP, Descriptor
from slipway.image.layer import File, LayerWriter, write_layer
from slipway.image.layout import LayoutStore
from slipway.image.model import Image, Layer, sha256, with_labels
from support.services import tiny_disk


def layer(store: LayoutStore, content: bytes = b"x") -> Layer:
    def fill(writer: LayerWriter) -> None:
        writer.add(File("opt/x", content))

    return write_layer(store, fill, roots=["opt"], key="k", created_by="test")


def image(store: LayoutStore, content: bytes = b"x") -> Image:
    return Image({"os": "linux", "architecture": "amd64", "config": {}}, (layer(store, content),))


@pytest.fixture
def store(tmp_path: Path) -> LayoutStore:
    return LayoutStore(tmp_path / "images")


def parts(store: LayoutStore) -> list[Path]:
    return list((store.root / "blobs/sha256").glob(".part-*"))


def test_an_image_comes_back_as_it_was_written(store: LayoutStore) -> None:
    written = with_labels(image(store), {"a": "b"})
    store.write_image(written, ["one", "two"])
    read = store.read_image("one")
    assert read is not None
    assert read.digest == written.digest
    assert read.layers[0].created_by == "test"
    assert store.read_image(written.digest) == store.read_image("two")
    assert store.read_image("three") is None


def test_a_store_is_an_oci_layout(store: LayoutStore) -> None:
    store.write_image(image(store), ["one"])
    assert json.loads((store.root / "oci-layout").read_text()) == {"imageLayoutVersion": "1.0.0"}
    [entry] = json.loads((store.root / "index.json").read_text())["manifests"]
    assert entry["annotations"] == {"org.opencontainers.image.ref.name": "one"}


def test_a_tag_refuses_another_digest_and_an_alias_moves(store: LayoutStore) -> None:
    first, second = image(store, b"1"), image(store, b"2")
    store.write_image(first, ["v1"])
    store.write_image(first, ["v1"])
    with pytest.raises(TagTakenError, match="already names"):
        store.write_image(second, ["v1"])
    assert store.tags()["v1"].digest == first.digest
    store.write_image(second, ["v1"], move=True)
    assert store.tags()["v1"].digest == second.digest


def test_advance_asks_before_it_leaves_another_image(store: LayoutStore) -> None:
    first, second = image(store, b"1"), image(store, b"2")
    for made in (first, second):
        store.write_image(made)
    assert store.advance("latest", first.descriptor, lambda _: False)
    assert not store.advance("latest", second.descriptor, lambda _: False)
    asked: list[Descriptor] = []
    assert store.advance("latest", second.descriptor, lambda d: not asked.append(d))
    assert asked == [first.descriptor]


def test_a_writer_that_fails_leaves_nothing(store: LayoutStore) -> None:

    def stop() -> None:
        with store.writer() as writer:
            writer.write(b"half")
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        stop()
    assert list((store.root / "blobs/sha256").iterdir()) == []


def test_a_blob_that_came_as_other_bytes_is_refused(store: LayoutStore, tmp_path: Path) -> None:
    there = LayoutStore(tmp_path / "other")
    made = layer(there)
    path = there.blob_path(made.descriptor.digest)
    path.write_bytes(b"\0" * made.descriptor.size)
    with pytest.raises(IntegrityError, match="came as"):
        store.copy(made)
    assert not store.has(made.descriptor.digest)
    assert parts(store) == []


@pytest.mark.parametrize("damage", ["missing", "short", "changed", "index"])
def test_a_damaged_store_says_so(store: LayoutStore, damage: str) -> None:
    made = image(store)
    store.write_image(made, ["one"])
    path = store.blob_path(made.digest)
    if damage == "missing":
        path.unlink()
    elif damage == "short":
        path.write_bytes(path.read_bytes()[:-1])
    elif damage == "changed":
        path.write_bytes(path.read_bytes().replace(b"linux", b"LINUX").replace(b"a", b"b"))
    else:
        (store.root / "index.json").write_text("{")
    with pytest.raises(IntegrityError) as caught:
        store.read_image("one")
    assert caught.value.remedy


def test_writers_side_by_side_lose_no_name(store: LayoutStore) -> None:
    made = image(store)
    store.write_image(made)

    def tag(number: int) -> None:
        LayoutStore(store.root).tag(f"t{number}", made.descriptor)

    threads = [threading.Thread(target=tag, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.tags()) == 20


KILLED = """
import sys, time
from pathlib import Path
from slipway.image.layout import LayoutStore
with LayoutStore(Path(sys.argv[1])).writer() as writer:
    writer.write(b"half of it")
    writer._file.flush()
    print("writing", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def killed(store: LayoutStore) -> Iterator[Path]:
    """The part that a writer left which was ended by SIGKILL."""
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(store.root)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"writing\n"
    [part] = parts(store)
    yield part
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()


def age(part: Path) -> None:
    os.utime(part, (time.time() - 3600,) * 2)


def test_what_a_killed_writer_left_goes_with_the_next_write(
    store: LayoutStore, killed: Path
) -> None:
    age(killed)
    store.put(b"first", LAYER_GZIP)
    assert killed.exists(), "its writer still lives"


def test_a_killed_writers_part_is_swept(store: LayoutStore, tmp_path: Path) -> None:
    suicide = KILLED.replace("time.sleep(60)", "import os; os.kill(os.getpid(), 9)")
    process = subprocess.run(
        [sys.executable, "-c", suicide, str(store.root)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.returncode == -signal.SIGKILL
    [part] = parts(store)
    LayoutStore(store.root).put(b"young", LAYER_GZIP)
    assert part.exists(), "it may be a writer's that has not taken its lock yet"
    age(part)
    LayoutStore(store.root).put(b"old", LAYER_GZIP)
    assert parts(store) == []
    assert store.has(sha256(b"young"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with tiny_disk(tmp_path / "disk", "1m") as place:
        yield place


def test_a_full_disk_is_a_storage_error_and_leaves_nothing(small_disk: Path) -> None:
    store = LayoutStore(small_disk / "images")
    with pytest.raises(StorageError, match="is full") as caught:
        store.put(os.urandom(1 << 22), LAYER_GZIP)
    assert "df -h" in caught.value.remedy
    assert list((store.root / "blobs/sha256").iterdir()) == []
    small = store.put(b"still usable", LAYER_GZIP)
    assert store.open(small).read() == b"still usable"


def test_a_store_that_may_not_be_written_is_a_storage_error(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    (tmp_path / "images").mkdir(mode=0o555)
    with pytest.raises(StorageError, match="cannot be written"):
        LayoutStore(tmp_path / "images").put(b"x", LAYER_GZIP)
