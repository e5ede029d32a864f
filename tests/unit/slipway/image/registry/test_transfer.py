"""Whole images: what moves, in which order, and what is never seen half-done."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from slipway.errors import (
    IntegrityError,
    NetworkError,
    RegistryError,
    SlipwayError,
    TagTakenError,
)
from slipway.image.descriptor import INDEX, MANIFEST, Descriptor, Platform
from slipway.image.layout import LayoutStore
from slipway.image.model import Image, append, canonical_json
from slipway.image.reference import Reference
from slipway.image.registry import RefusedError, Registry, Repository, pull_image, push_image
from support.registries import MemoryRegistry

AMD64 = Platform("linux", "amd64")
MakeImage = Callable[..., Image]


def layers(image: Image) -> set[str]:
    return {layer.descriptor.digest for layer in image.layers}


def named(server: MemoryRegistry, tag: str) -> str | None:
    return server.tags.get(("team/keel", tag))


def test_a_push_publishes_under_all_its_tags(
    server: MemoryRegistry, repository: Repository, make_image: MakeImage
) -> None:
    image = make_image(b"one" * 1000, b"two")
    report = push_image(image, repository, ["v1", "latest", "stable"])
    assert {named(server, tag) for tag in ("v1", "latest", "stable")} == {image.digest}
    assert server.manifests["team/keel", image.digest] == (MANIFEST, image.manifest_bytes)
    assert report.digest == image.digest
    assert report.bytes_uploaded == 3003 + len(image.config_bytes)
    assert report.requests == len(server.seen)


def test_nothing_names_the_image_before_it_is_whole(
    server: MemoryRegistry, repository: Repository, make_image: MakeImage
) -> None:
    push_image(make_image(b"one", b"two"), repository, ["v1", "latest"])
    steps = [(seen.method, seen.path.rpartition("/")[2]) for seen in server.seen]
    first = steps.index(("PUT", "v1"))
    blobs = [number for number, seen in enumerate(server.seen) if "/blobs/" in seen.path]
    assert max(blobs) < first < steps.index(("GET", "v1")) < steps.index(("PUT", "latest"))


def test_the_same_image_again_moves_nothing(
    server: MemoryRegistry, repository: Repository, make_image: MakeImage
) -> None:
    image = make_image(b"one", b"two")
    push_image(image, repository, ["v1", "latest"])
    server.seen.clear()
    known = layers(image) | {image.config_descriptor.digest}
    report = push_image(image, repository, ["v1", "latest"], known=known)
    assert (report.bytes_uploaded, report.bytes_mounted, report.blobs_present) == (0, 0, 3)
    assert server.methods() == ["HEAD", "PUT"]


def test_an_edit_moves_one_layer_and_the_config(
    server: MemoryRegistry, repository: Repository, make_image: MakeImage, make_layer: Callable
) -> None:  # type: ignore[type-arg]
    before = make_image(b"one" * 1000, b"two" * 1000)
    push_image(before, repository, ["v1", "latest"])
    server.seen.clear()
    after = append(before, [make_layer(b"edit")])
    report = push_image(after, repository, ["v2", "latest"], known=layers(before))
    assert report.bytes_uploaded == 4 + len(after.config_bytes)
    assert report.blobs_present == 2
    assert sorted(server.methods()) == ["GET", "HEAD", "POST", "POST", "PUT", "PUT", "PUT", "PUT"]


def test_what_is_taken_for_known_and_is_gone_is_brought_anew(
    server: MemoryRegistry, repository: Repository, make_image: MakeImage
) -> None:
    image = make_image(b"one", b"two")
    push_image(image, repository, ["v1"])
    gone = image.layers[0].descriptor.digest
    del server.blobs["team/keel", gone]
    image = replace(image, annotations={"other": "manifest"})
    push_image(image, repository, ["v2"], known=layers(image))
    assert named(server, "v2") == image.digest
    assert ("team/keel", gone) in server.blobs


def test_a_missing_blob_that_nobody_vouched_for_is_an_error(
    server: MemoryRegistry, repository: Repository, make_image: MakeImage
) -> None:
    server.fault(
        method="PUT",
        path=".*/manifests/.*",
        status=404,
        body=b'{"errors":[{"code":"MANIFEST_BLOB_UNKNOWN"}]}',
    )
    with pytest.raises(RefusedError, match="MANIFEST_BLOB_UNKNOWN"):
        push_image(make_image(b"one"), repository, ["v1"])
    assert named(server, "v1") is None


def test_an_immutable_tag_stays(
    server: MemoryRegistry, repository: Repository, make_image: MakeImage
) -> None:
    first = make_image(b"one")
    push_image(first, repository, ["v1", "latest"])
    with pytest.raises(TagTakenError, match="v1 already names"):
        push_image(make_image(b"two"), repository, ["v1", "latest"])
    assert {named(server, "v1"), named(server, "latest")} == {first.digest}


def test_a_first_tag_may_move_where_that_is_meant(
    server: MemoryRegistry, repository: Repository, make_image: MakeImage
) -> None:
    push_image(make_image(b"one"), repository, ["dev"])
    second = make_image(b"two")
    push_image(second, repository, ["dev"], immutable=False)
    assert named(server, "dev") == second.digest


def test_an_alias_stays_where_the_manifest_reads_back_as_another(
    server: MemoryRegistry, repository: Repository, make_image: MakeImage
) -> None:
    other = make_image(b"other")
    push_image(other, repository, ["other"])
    server.fault(
        method="GET",
        path=".*/manifests/v1",
        status=200,
        headers={"Content-Type": MANIFEST},
        body=other.manifest_bytes,
    )
    with pytest.raises(IntegrityError, match=f"reads as {other.digest}"):
        push_image(make_image(b"one"), repository, ["v1", "latest"])
    assert named(server, "latest") is None


def test_layers_are_mounted_without_being_opened(
    server: MemoryRegistry, repository: Repository, make_image: MakeImage
) -> None:
    class Shut:
        def open(self, blob: Descriptor) -> object:
            raise AssertionError("a layer was opened")

    image = make_image(b"base" * 100)
    (layer,) = image.layers
    server.put_blob("base/debian", b"base" * 100)
    source = Reference("base/debian", server.host)
    mounted = replace(image, layers=(replace(layer, source=Shut(), mount_from=source),))
    report = push_image(mounted, repository, ["v1"])
    assert (report.bytes_mounted, report.bytes_uploaded) == (400, len(image.config_bytes))


@pytest.mark.parametrize("begun", [True, False])
def test_a_mount_that_is_declined_becomes_an_upload(
    server: MemoryRegistry, make_image: MakeImage, begun: bool
) -> None:
    repository = Registry(server.host, max_connections=1).repository("team/keel")
    server.mounts = False
    if not begun:
        server.fault(method="POST", path=".*/uploads/", status=405)
    image = make_image(b"base" * 100)
    source = Reference("base/debian", server.host)
    image = replace(image, layers=(replace(image.layers[0], mount_from=source),))
    report = push_image(image, repository, ["v1"])
    assert report.bytes_uploaded == 400 + len(image.config_bytes)
    assert named(server, "v1") == image.digest


@pytest.mark.parametrize("mount_from", [None, Reference("base/debian", "x")])
def test_a_large_layer_that_is_there_is_not_sent_where_nothing_can_be_mounted(
    server: MemoryRegistry,
    repository: Repository,
    make_image: MakeImage,
    mount_from: Reference | None,
) -> None:
    server.mounts = False
    image = make_image(b"base" * (1 << 18))
    server.put_blob("team/keel", b"base" * (1 << 18))
    image = replace(image, layers=(replace(image.layers[0], mount_from=mount_from),))
    report = push_image(image, repository, ["v1"])
    assert report.bytes_uploaded == len(image.config_bytes)
    assert report.blobs_present == 1


def test_an_image_may_have_no_tag(
    server: MemoryRegistry, repository: Repository, make_image: MakeImage
) -> None:
    image = make_image(b"one")
    push_image(image, repository, [])
    assert repository.resolve(image.digest) is not None
    assert server.tags == {}


def test_one_token_serves_a_whole_push(
    server: MemoryRegistry, repository: Repository, make_image: MakeImage
) -> None:
    from support.registries import serving

    with serving(MemoryRegistry()) as auth:
        auth.fault(status=200, body=b'{"token":"t","expires_in":300}', times=99)
        server.challenge = f'Bearer realm="http://{auth.host}/token",service="reg"'
        server.authorizations = {"Bearer t"}
        image = make_image(b"one", b"two")
        source = Reference("base/debian", server.host)
        image = replace(
            image, layers=(replace(image.layers[0], mount_from=source), image.layers[1])
        )
        push_image(image, repository, ["v1", "latest"])
        assert len(auth.seen) == 1
        assert auth.seen[0].query.count("scope=") == 2


def test_a_failure_ends_the_other_uploads(
    server: MemoryRegistry, registry: Registry, make_image: MakeImage
) -> None:
    image = make_image(*(os.urandom(2 << 20) for _ in range(12)))
    server.fault(method="PUT", path=".*/uploads/.*", status=403, after=3)
    with pytest.raises(RegistryError):
        push_image(image, registry.repository("team/keel"), ["v1"])
    assert named(server, "v1") is None
    assert server.methods().count("PUT") < 12


def test_progress_hears_of_each_layer(repository: Repository, make_image: MakeImage) -> None:
    heard: list[tuple[str, int, str]] = []
    lock = threading.Lock()

    def progress(blob: Descriptor, done: int, outcome: str) -> None:
        with lock:
            heard.append((blob.digest, done, outcome))

    image = make_image(b"one", b"two")
    push_image(image, repository, ["v1"], progress=progress)
    ends = {digest: outcome for digest, _, outcome in heard if outcome}
    assert ends == dict.fromkeys(layers(image), "uploaded")


def test_a_pull_brings_the_image_as_it_was_pushed(
    server: MemoryRegistry, repository: Repository, make_image: MakeImage, store: LayoutStore
) -> None:
    image = replace(make_image(b"one", b"two", b"one"), annotations={"a": "b"})
    push_image(image, repository, ["v1"])
    elsewhere = LayoutStore(store.root.parent / "elsewhere")
    pulled = pull_image(repository, "v1", elsewhere, AMD64)
    assert pulled.digest == image.digest
    assert [layer.open().read() for layer in pulled.layers] == [b"one", b"two", b"one"]


def test_a_pull_leaves_alone_what_is_here(
    server: MemoryRegistry, repository: Repository, make_image: MakeImage, store: LayoutStore
) -> None:
    push_image(make_image(b"one", b"two"), repository, ["v1"])
    server.seen.clear()
    pull_image(repository, "v1", store, AMD64)
    assert server.methods() == ["GET", "GET"]


def test_an_index_gives_the_image_of_the_platform(
    server: MemoryRegistry, repository: Repository, make_image: MakeImage, store: LayoutStore
) -> None:
    amd, arm = make_image(b"amd"), make_image(b"arm")
    entries = []
    for image, platform in ((amd, "linux/amd64"), (arm, "linux/arm64/v8")):
        push_image(image, repository, [platform.replace("/", "-")])
        entries.append(replace(image.descriptor, platform=Platform.parse(platform)).to_json())
    index = canonical_json({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries})
    repository.put_manifest(index, INDEX, "v1")
    assert pull_image(repository, "v1", store, AMD64).digest == amd.digest
    assert pull_image(repository, "v1", store, Platform.parse("linux/arm64")).digest == arm.digest
    with pytest.raises(RegistryError, match="no image for linux/s390x") as caught:
        pull_image(repository, "v1", store, Platform("linux", "s390x"))
    assert "linux/amd64, linux/arm64/v8" in caught.value.remedy


def test_an_image_that_is_not_there_is_said_so(repository: Repository, store: LayoutStore) -> None:
    with pytest.raises(RegistryError, match="there is no"):
        pull_image(repository, "v9", store, AMD64)


def test_a_damaged_layer_leaves_nothing_behind(
    server: MemoryRegistry, repository: Repository, make_image: MakeImage, store: LayoutStore
) -> None:
    image = make_image(b"one" * 1000, b"two")
    push_image(image, repository, ["v1"])
    bad = image.layers[0].descriptor.digest
    server.fault(method="GET", path=f".*{bad}", corrupt=True)
    elsewhere = LayoutStore(store.root.parent / "elsewhere")
    with pytest.raises(IntegrityError, match=bad):
        pull_image(repository, "v1", elsewhere, AMD64)
    assert not elsewhere.has(bad)
    assert not list((elsewhere.root / "blobs" / "sha256").glob(".part-*"))


def hostile(repository: Repository, **members: object) -> None:
    config = repository.put_bytes(b'{"rootfs":{"diff_ids":["sha256:0"]}}', "c")
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": config.to_json(), **members}
    repository.put_manifest(json.dumps(manifest).encode(), MANIFEST, "v1")


@pytest.mark.parametrize(
    "members",
    [
        {"layers": []},
        {},
        {"layers": "x"},
        {"layers": [{"mediaType": "x"}]},
    ],
)
def test_a_manifest_that_is_none_is_refused(
    server: MemoryRegistry, repository: Repository, store: LayoutStore, members: dict[str, object]
) -> None:
    body = json.dumps({"schemaVersion": 2, "config": 5, **members}).encode()
    server.fault(method="GET", status=200, headers={"Content-Type": MANIFEST}, body=body)
    with pytest.raises(IntegrityError):
        pull_image(repository, "v1", store, AMD64)


def test_a_manifest_and_a_config_must_agree_on_the_layers(
    repository: Repository, store: LayoutStore
) -> None:
    hostile(repository, layers=[])
    with pytest.raises(IntegrityError, match="0 layers, its config 1"):
        pull_image(repository, "v1", store, AMD64)


@pytest.mark.parametrize("digest", ["sha256:../../../escape", "sha512/../x:0", "x"])
def test_a_digest_that_is_a_path_leads_nowhere(
    server: MemoryRegistry, repository: Repository, store: LayoutStore, digest: str
) -> None:
    (store.root.parent / "escape").write_bytes(b"abc")
    config = repository.put_bytes(b'{"rootfs":{"diff_ids":["sha256:0"]}}', "c").to_json()
    layer = {"mediaType": "x", "digest": digest, "size": 3}
    body = json.dumps({"schemaVersion": 2, "config": config, "layers": [layer]}).encode()
    server.fault(
        method="GET",
        path=".*manifests.*",
        status=200,
        body=body,
        headers={"Content-Type": MANIFEST},
    )
    with pytest.raises(SlipwayError):
        pull_image(repository, "v1", store, AMD64)


def test_a_config_too_large_to_be_one_is_not_read(
    server: MemoryRegistry, repository: Repository, store: LayoutStore
) -> None:
    config = {"mediaType": "c", "digest": f"sha256:{'0' * 64}", "size": 1 << 40}
    body = json.dumps({"schemaVersion": 2, "config": config, "layers": []}).encode()
    server.fault(method="GET", status=200, headers={"Content-Type": MANIFEST}, body=body)
    with pytest.raises(IntegrityError, match="config of"):
        pull_image(repository, "v1", store, AMD64)
    assert len(server.seen) == 1


def test_a_registry_that_goes_away_is_a_network_error(
    server: MemoryRegistry, repository: Repository, make_image: MakeImage
) -> None:
    server.fault(lose_answer=True, times=999)
    with pytest.raises(NetworkError):
        push_image(make_image(b"one"), repository, ["v1"])
