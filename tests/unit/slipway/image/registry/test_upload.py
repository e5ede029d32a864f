"""Uploads: whole, in chunks, continued, begun again; never a damaged blob."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from slipway.errors import IntegrityError, SlipwayError, StorageError
from slipway.image.layout import LayoutStore
from slipway.image.model import Layer
from slipway.image.registry import RefusedError, Repository
from slipway.image.registry.failures import DroppedError
from support.registries import MemoryRegistry

MIB = 1 << 20
MakeLayer = Callable[[bytes], Layer]


@pytest.fixture
def layer(make_layer: MakeLayer) -> Layer:
    return make_layer(os.urandom(9 * MIB + 17))


def stored(server: MemoryRegistry, layer: Layer) -> bool:
    with layer.open() as stream:
        return server.blobs.get(("team/keel", layer.descriptor.digest)) == stream.read()


def test_a_blob_goes_up_in_one_request(
    server: MemoryRegistry, repository: Repository, layer: Layer
) -> None:
    sent: list[int] = []
    repository.put_blob(layer, sent=sent.append)
    assert stored(server, layer)
    assert server.methods() == ["POST", "PUT"]
    assert sent == sorted(sent)
    assert sent[-1] == layer.descriptor.size


def test_an_empty_blob_goes_up(
    server: MemoryRegistry, repository: Repository, make_layer: MakeLayer
) -> None:
    layer = make_layer(b"")
    repository.put_blob(layer)
    assert stored(server, layer)


def test_an_upload_that_was_begun_is_used(
    server: MemoryRegistry, repository: Repository, layer: Layer
) -> None:
    mounted, location = repository.mount(layer.descriptor.digest, "team/base")
    assert not mounted
    repository.put_blob(layer, location)
    assert server.methods() == ["POST", "PUT"]


def test_a_limit_in_front_makes_chunks_that_fit(
    server: MemoryRegistry, repository: Repository, layer: Layer
) -> None:
    server.fault(over=3 * MIB, status=413, early=True, times=99)
    repository.put_blob(layer)
    assert stored(server, layer)
    chunks = [seen.length for seen in server.seen if seen.method == "PATCH" and seen.length <= MIB]
    assert len(chunks) == 10
    spans = [
        seen.headers["content-range"]
        for seen in server.seen
        if seen.method == "PATCH" and seen.length <= MIB
    ]
    assert spans[:2] == [f"0-{MIB - 1}", f"{MIB}-{2 * MIB - 1}"]


def test_the_limit_is_remembered_for_the_next_blob(
    server: MemoryRegistry, repository: Repository, make_layer: MakeLayer, layer: Layer
) -> None:
    limit = server.fault(over=5 * MIB, status=413, early=True, times=99)
    repository.put_blob(layer)
    refused = limit.seen
    repository.put_blob(make_layer(os.urandom(9 * MIB)))
    assert limit.seen == refused == 1


def test_a_limit_below_the_smallest_chunk_is_named(
    server: MemoryRegistry, repository: Repository, layer: Layer
) -> None:
    server.fault(over=MIB - 1, status=413, early=True, times=99)
    with pytest.raises(RefusedError, match=f"413.* body of {MIB} bytes") as caught:
        repository.put_blob(layer)
    assert "client_max_body_size" in caught.value.remedy
    assert not stored(server, layer)


def test_a_registrys_least_chunk_is_respected(
    server: MemoryRegistry, repository: Repository, layer: Layer
) -> None:
    server.fault(
        method="POST",
        status=202,
        headers={
            "Location": "/v2/team/keel/blobs/uploads/u9",
            "OCI-Chunk-Min-Length": str(2 * MIB),
        },
        times=99,
    )
    server.fault(over=3 * MIB, status=413, early=True, times=99)
    server.uploads["u9"] = bytearray()
    with pytest.raises(RefusedError, match="413"):
        repository.put_blob(layer)
    assert min(seen.length for seen in server.seen if seen.method in ("PATCH", "PUT")) > 3 * MIB


@pytest.mark.parametrize("cut", [0, 1, 5 * MIB])
def test_a_reset_is_continued_where_the_registry_has_it(
    server: MemoryRegistry, repository: Repository, layer: Layer, cut: int
) -> None:
    server.fault(method="PUT", cut=cut)
    repository.put_blob(layer)
    assert stored(server, layer)
    taken = sum(seen.length for seen in server.seen if seen.method in ("PATCH", "PUT"))
    whole = layer.descriptor.size
    assert taken == (whole + whole - cut if cut > 1 else 2 * whole)


def test_many_resets_are_survived_while_each_brings_something(
    server: MemoryRegistry, repository: Repository, layer: Layer
) -> None:
    server.fault(method="PUT|PATCH", over=MIB, cut=MIB + 5, times=8)
    repository.put_blob(layer)
    assert stored(server, layer)


def test_a_registry_that_forgets_uploads_gets_the_blob_anew(
    server: MemoryRegistry, repository: Repository, layer: Layer
) -> None:
    server.resumes = False
    server.fault(method="PUT", cut=4 * MIB)
    repository.put_blob(layer)
    assert stored(server, layer)
    assert server.methods() == ["POST", "PUT", "GET", "HEAD", "POST", "PUT"]


def test_a_lost_answer_does_not_send_the_blob_twice(
    server: MemoryRegistry, repository: Repository, layer: Layer
) -> None:
    server.fault(method="PUT", lose_answer=True)
    repository.put_blob(layer)
    assert stored(server, layer)
    assert server.methods().count("PUT") == 1


def test_repeated_resets_of_a_large_body_lead_to_chunks(
    server: MemoryRegistry, repository: Repository, layer: Layer
) -> None:
    server.resumes = False
    server.fault(method="PUT", over=5 * MIB, cut=MIB, times=99)
    repository.put_blob(layer)
    assert stored(server, layer)
    assert "PATCH" in server.methods()


def test_resets_without_end_are_an_error(
    server: MemoryRegistry, repository: Repository, make_layer: MakeLayer
) -> None:
    server.fault(method="PUT|PATCH", cut=0, times=999)
    with pytest.raises(DroppedError):
        repository.put_blob(make_layer(b"small"))
    assert len(server.seen) < 60


@pytest.mark.parametrize("status", [500, 502, 503])
def test_a_5xx_in_the_middle_is_survived(
    server: MemoryRegistry, repository: Repository, layer: Layer, status: int
) -> None:
    server.fault(method="PUT", status=status, times=2)
    repository.put_blob(layer)
    assert stored(server, layer)


def test_bytes_spoiled_on_the_way_are_sent_again(
    server: MemoryRegistry, repository: Repository, layer: Layer
) -> None:
    server.fault(method="PUT", corrupt_request=True)
    repository.put_blob(layer)
    assert stored(server, layer)


def test_a_blob_damaged_here_is_told_from_one_damaged_on_its_way(
    server: MemoryRegistry, repository: Repository, store: LayoutStore, layer: Layer
) -> None:
    path = store.blob_path(layer.descriptor.digest)
    data = bytearray(path.read_bytes())
    data[5 * MIB] ^= 1
    path.write_bytes(data)
    with pytest.raises(IntegrityError, match="damaged where it is taken from"):
        repository.put_blob(layer)
    assert server.methods().count("PUT") == 1


def test_a_blob_that_ends_early_here_is_not_sent_as_if_whole(
    server: MemoryRegistry, repository: Repository, layer: Layer, tmp_path: Path
) -> None:
    class Short:
        def open(self, blob: object) -> object:
            path = tmp_path / "short"
            path.write_bytes(b"x" * 1000)
            return path.open("rb")

    short = Layer(layer.descriptor, "", Short())  # type: ignore[arg-type]
    with pytest.raises(IntegrityError, match="ends after 1000"):
        repository.put_blob(short)
    assert server.blobs == {}


def test_a_disk_that_fails_is_no_network_error(repository: Repository, layer: Layer) -> None:
    class Broken:
        def open(self, blob: object) -> object:
            raise PermissionError(13, "Permission denied")

    with pytest.raises(StorageError, match="Permission denied"):
        repository.put_blob(Layer(layer.descriptor, "", Broken()))  # type: ignore[arg-type]


def test_giving_up_ends_the_upload_at_once(
    server: MemoryRegistry, repository: Repository, layer: Layer
) -> None:
    def stop(done: int) -> None:
        raise SlipwayError("stop")

    with pytest.raises(SlipwayError, match="stop"):
        repository.put_blob(layer, sent=stop)
    assert server.blobs == {}
    assert server.methods().count("PUT") <= 1


def test_a_location_at_another_host_gets_no_byte(
    server: MemoryRegistry, repository: Repository, layer: Layer
) -> None:
    server.fault(method="POST", status=202, headers={"Location": "http://127.0.0.2:9/v2/u"})
    with pytest.raises(SlipwayError, match="another host"):
        repository.put_blob(layer)
    assert server.methods() == ["POST"]
