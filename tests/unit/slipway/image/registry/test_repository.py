"""Manifests, lists and blobs of one repository."""

from __future__ import annotations

import hashlib
import json

import pytest

from slipway.errors import IntegrityError, RegistryError, UsageError
from slipway.image.descriptor import INDEX, MANIFEST
from slipway.image.registry import RefusedError, Registry, Repository
from support.registries import MemoryRegistry

DATA = json.dumps({"schemaVersion": 2, "layers": []}).encode()
DIGEST = f"sha256:{hashlib.sha256(DATA).hexdigest()}"


@pytest.mark.parametrize("name", ["", "Team/keel", "a/../b", "/a", "a b", "a\r\nb", "a" * 256])
def test_what_is_no_repository_is_refused(registry: Registry, name: str) -> None:
    with pytest.raises(UsageError):
        registry.repository(name)


@pytest.mark.parametrize("tag", ["", "a b", "../x", ".x", "a\r\nHost: b", "a" * 129])
def test_what_is_no_tag_is_never_asked_for(
    server: MemoryRegistry, repository: Repository, tag: str
) -> None:
    with pytest.raises(UsageError):
        repository.resolve(tag)
    assert server.seen == []


def test_a_manifest_is_found_by_tag_and_digest(repository: Repository) -> None:
    put = repository.put_manifest(DATA, MANIFEST, "v1")
    assert put.digest == DIGEST
    for identifier in ("v1", DIGEST):
        assert repository.resolve(identifier) == put
        assert repository.manifest(identifier) == (put, DATA)
    assert repository.resolve("v2") is None
    assert repository.manifest("v2") is None


def test_a_manifest_without_a_name_lies_under_its_digest(repository: Repository) -> None:
    repository.put_manifest(DATA, MANIFEST)
    assert repository.resolve(DIGEST) is not None
    assert repository.tags() == []


@pytest.mark.parametrize("headers", [{}, {"Docker-Content-Digest": "nonsense"}])
def test_a_head_that_says_too_little_is_followed_by_a_get(
    server: MemoryRegistry, repository: Repository, headers: dict[str, str]
) -> None:
    put = repository.put_manifest(DATA, MANIFEST, "v1")
    server.fault(method="HEAD", status=200, headers=headers)
    assert repository.resolve("v1") == put
    assert server.methods()[1:] == ["HEAD", "GET"]


def test_a_registry_without_head_is_asked_by_get(
    server: MemoryRegistry, repository: Repository
) -> None:
    put = repository.put_manifest(DATA, MANIFEST, "v1")
    server.fault(method="HEAD", status=405)
    assert repository.resolve("v1") == put


def test_a_manifest_with_other_bytes_is_refused(
    server: MemoryRegistry, repository: Repository
) -> None:
    repository.put_manifest(DATA, MANIFEST, "v1")
    for identifier in ("v1", DIGEST):
        server.fault(method="GET", corrupt=True, after=0)
        with pytest.raises(IntegrityError, match="came with the bytes of"):
            repository.manifest(identifier)
        server.faults.clear()


def test_a_digest_answered_with_another_is_refused(
    server: MemoryRegistry, repository: Repository
) -> None:
    headers = {"Docker-Content-Digest": f"sha256:{'0' * 64}", "Content-Length": "5"}
    server.fault(method="HEAD", status=200, headers=headers)
    with pytest.raises(IntegrityError):
        repository.resolve(DIGEST)


def test_a_giant_manifest_is_not_read(server: MemoryRegistry, repository: Repository) -> None:
    server.fault(method="GET", status=200, body=b"{" * (5 << 20))
    with pytest.raises(RegistryError, match="4 MiB"):
        repository.manifest("v1")


def test_the_kind_is_taken_from_the_manifest_where_the_header_is_vague(
    server: MemoryRegistry, repository: Repository
) -> None:
    body = json.dumps({"mediaType": INDEX, "manifests": []}).encode()
    server.fault(status=200, headers={"Content-Type": "application/json"}, body=body)
    found = repository.manifest("v1")
    assert found is not None
    assert found[0].media_type == INDEX


def test_a_500_after_the_write_took_place_is_no_failure(
    server: MemoryRegistry, repository: Repository
) -> None:
    server.fault(method="PUT", late_status=500)
    assert repository.put_manifest(DATA, MANIFEST, "v1").digest == DIGEST
    assert server.methods() == ["PUT", "HEAD"]


def test_a_500_without_a_write_is_tried_again(
    server: MemoryRegistry, repository: Repository
) -> None:
    server.fault(method="PUT", status=500, times=2)
    repository.put_manifest(DATA, MANIFEST, "v1")
    assert server.methods() == ["PUT", "HEAD", "PUT", "HEAD", "PUT"]


def test_a_digest_that_two_writers_of_the_same_bytes_upset_is_tried_again(
    server: MemoryRegistry, repository: Repository
) -> None:
    # docker-registry 2.8 on a file system: both write the same file, and one reads half of it.
    body = b'{"errors":[{"code":"DIGEST_INVALID","message":"did not match uploaded content"}]}'
    server.fault(method="PUT", status=400, body=body)
    assert repository.put_manifest(DATA, MANIFEST, "v1").digest == DIGEST
    assert server.methods() == ["PUT", "HEAD", "PUT"]
    server.fault(method="PUT", status=400, body=b'{"errors":[{"code":"MANIFEST_INVALID"}]}')
    with pytest.raises(RefusedError, match="MANIFEST_INVALID"):
        repository.put_manifest(DATA, MANIFEST, "v1")


def test_a_500_that_stays_is_an_error(server: MemoryRegistry, repository: Repository) -> None:
    server.fault(method="PUT", status=500, times=99)
    with pytest.raises(RefusedError, match="500"):
        repository.put_manifest(DATA, MANIFEST, "v1")


def test_a_manifest_stored_as_another_is_an_error(
    server: MemoryRegistry, repository: Repository
) -> None:
    headers = {"Docker-Content-Digest": f"sha256:{'0' * 64}"}
    server.fault(method="PUT", status=201, headers=headers)
    with pytest.raises(IntegrityError, match="stored manifest v1 as sha256:000"):
        repository.put_manifest(DATA, MANIFEST, "v1")


def test_tags_come_from_all_pages(server: MemoryRegistry, repository: Repository) -> None:
    server.page = 3
    names = [f"t{number}" for number in range(8)]
    server.tags.update({("team/keel", name): DIGEST for name in names})
    assert repository.tags() == names
    assert len(server.seen) == 3


def test_an_unknown_repository_has_no_tags(repository: Repository) -> None:
    assert repository.tags() == []


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"tags": "abc"}', b"{}"])
def test_a_list_that_is_none_is_refused(
    server: MemoryRegistry, repository: Repository, body: bytes
) -> None:
    server.fault(status=200, body=body)
    with pytest.raises(RegistryError, match="no list"):
        repository.tags()


def test_pages_in_a_circle_end(server: MemoryRegistry, repository: Repository) -> None:
    link = {"Link": '</v2/team/keel/tags/list?n=1>; rel="next"'}
    server.fault(status=200, headers=link, body=b'{"tags": ["a"]}', times=99)
    with pytest.raises(RegistryError, match="without an end"):
        repository.tags()
    assert len(server.seen) == 2


def test_a_next_page_at_another_host_is_refused(
    server: MemoryRegistry, repository: Repository
) -> None:
    link = {"Link": '<http://127.0.0.2:9/v2/>; rel="next"'}
    server.fault(status=200, headers=link, body=b'{"tags": ["a"]}')
    with pytest.raises(RegistryError, match="another host"):
        repository.tags()


def test_a_manifest_can_be_deleted(repository: Repository) -> None:
    repository.put_manifest(DATA, MANIFEST, "v1")
    repository.delete(DIGEST)
    assert repository.resolve(DIGEST) is None


def test_a_registry_that_deletes_nothing_says_where_that_is_set(
    server: MemoryRegistry, repository: Repository
) -> None:
    server.fault(method="DELETE", status=405)
    with pytest.raises(RefusedError) as caught:
        repository.delete(DIGEST)
    assert "delete.enabled" in caught.value.remedy


def test_a_blob_behind_a_redirect_is_there(server: MemoryRegistry, repository: Repository) -> None:
    digest = server.put_blob("team/keel", b"x")
    assert repository.has_blob(digest)
    assert not repository.has_blob(DIGEST)
    server.fault(method="HEAD", status=307, headers={"Location": "http://127.0.0.2:9/signed"})
    assert repository.has_blob(DIGEST)


def test_a_blob_is_mounted_or_an_upload_begun(
    server: MemoryRegistry, repository: Repository
) -> None:
    digest = server.put_blob("base/debian", b"x")
    assert repository.mount(digest, "base/debian") == (True, "")
    assert repository.has_blob(digest)
    mounted, location = repository.mount(DIGEST, "base/debian")
    assert not mounted
    assert location


@pytest.mark.parametrize("status", [400, 403, 404, 405])
def test_a_mount_that_is_refused_is_one_that_is_declined(
    server: MemoryRegistry, repository: Repository, status: int
) -> None:
    server.fault(method="POST", status=status)
    assert repository.mount(DIGEST, "base/debian") == (False, "")


def test_small_blobs_go_up_from_memory(server: MemoryRegistry, repository: Repository) -> None:
    blob = repository.put_bytes(b"{}", "application/json")
    assert server.blobs["team/keel", blob.digest] == b"{}"


def test_warming_connects_ahead(server: MemoryRegistry, repository: Repository) -> None:
    repository.warm(2)
    repository.put_bytes(b"{}", "application/json")
    assert server.connections == 2
