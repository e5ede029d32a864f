"""Referrers: through the API, or under the tag that stands in for it."""

from __future__ import annotations

import hashlib
import json

import pytest

from slipway.errors import IntegrityError
from slipway.image.descriptor import EMPTY, INDEX, MANIFEST, Descriptor
from slipway.image.model import canonical_json
from slipway.image.registry import RefusedError, Repository
from support.registries import MemoryRegistry


def subject(repository: Repository) -> Descriptor:
    return repository.put_manifest(b'{"schemaVersion":2,"layers":[]}', MANIFEST, "v1")


def statement(repository: Repository, of: Descriptor, kind: str) -> bytes:
    config = repository.put_bytes(b"{}", EMPTY)
    return canonical_json(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "artifactType": kind,
            "config": config.to_json(),
            "layers": [config.to_json()],
            "subject": of.to_json(),
            "annotations": {"about": kind},
        }
    )


@pytest.mark.parametrize("api", [True, False])
def test_what_is_attached_is_found(
    server: MemoryRegistry, repository: Repository, api: bool
) -> None:
    server.has_referrers = api
    image = subject(repository)
    assert repository.referrers(image.digest) == []
    sbom = repository.attach(statement(repository, image, "application/sbom"))
    proof = repository.attach(statement(repository, image, "application/proof"))
    repository.attach(statement(repository, image, "application/proof"))
    found = repository.referrers(image.digest)
    assert {one.digest for one in found} == {sbom.digest, proof.digest}
    assert [one.digest for one in repository.referrers(image.digest, "application/sbom")] == [
        sbom.digest
    ]
    assert (("team/keel", image.digest.replace(":", "-")) in server.tags) is not api


def test_the_tag_lists_what_the_spec_asks_for(
    server: MemoryRegistry, repository: Repository
) -> None:
    image = subject(repository)
    data = statement(repository, image, "application/sbom")
    repository.attach(data)
    _, stored = server.manifests[
        "team/keel", server.tags["team/keel", image.digest.replace(":", "-")]
    ]
    (entry,) = json.loads(stored)["manifests"]
    assert entry == {
        "mediaType": MANIFEST,
        "digest": f"sha256:{hashlib.sha256(data).hexdigest()}",
        "size": len(data),
        "artifactType": "application/sbom",
        "annotations": {"about": "application/sbom"},
    }


def test_a_tag_that_lists_nonsense_is_refused(repository: Repository) -> None:
    image = subject(repository)
    repository.put_manifest(b'{"manifests": 5}', INDEX, image.digest.replace(":", "-"))
    with pytest.raises(IntegrityError, match="no list of referrers"):
        repository.referrers(image.digest)


def test_a_registry_that_fails_is_not_one_without_the_api(
    server: MemoryRegistry, repository: Repository
) -> None:
    server.fault(path=".*/referrers/.*", status=403)
    with pytest.raises(RefusedError, match="403"):
        repository.referrers(f"sha256:{'0' * 64}")
