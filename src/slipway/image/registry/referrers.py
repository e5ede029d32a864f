"""What refers to a manifest: through the API, or the tag that stands in for it (spec 1.1)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from slipway.errors import IntegrityError
from slipway.image.descriptor import INDEX, Descriptor
from slipway.image.model import canonical_json
from slipway.image.registry.failures import RefusedError

if TYPE_CHECKING:
    from slipway.image.registry.repository import Repository


def find(repository: Repository, digest: str, artifact_type: str) -> list[Descriptor]:
    """The manifests whose subject is `digest`."""
    try:
        pages = repository._pages(f"/referrers/{digest}", "manifests")
        found = [Descriptor.from_json(entry) for page in pages for entry in page]
    except RefusedError as error:
        # What registries without the API answer to a path that they do not know.
        if error.status not in (400, 404, 405):
            raise
        found = _tagged(repository, digest)
    # A registry may, and need not, filter by itself.
    return [one for one in found if not artifact_type or one.artifact_type == artifact_type]


def note(repository: Repository, descriptor: Descriptor, data: bytes) -> None:
    """List a manifest, stored as `descriptor`, under its subject's tag, for lack of the API.

    Two writers at once may lose one entry, as the spec says of this scheme.
    """
    manifest = json.loads(data)
    subject = manifest["subject"]["digest"]
    listed = _tagged(repository, subject)
    if any(one.digest == descriptor.digest for one in listed):
        return
    entry = Descriptor(
        descriptor.media_type,
        descriptor.digest,
        descriptor.size,
        annotations=manifest.get("annotations") or {},
        artifact_type=manifest.get("artifactType") or manifest["config"]["mediaType"],
    )
    index = {
        "schemaVersion": 2,
        "mediaType": INDEX,
        "manifests": [one.to_json() for one in (*listed, entry)],
    }
    repository.put_manifest(canonical_json(index), INDEX, _tag(subject))


def _tagged(repository: Repository, digest: str) -> list[Descriptor]:
    found = repository.manifest(_tag(digest))
    if found is None:
        return []
    try:
        return [Descriptor.from_json(entry) for entry in json.loads(found[1])["manifests"]]
    except (ValueError, TypeError, KeyError) as error:
        raise IntegrityError(f"{repository}:{_tag(digest)} is no list of referrers") from error


def _tag(digest: str) -> str:
    """`sha256:<hex>` as a tag; at most 128 characters, so a sha512 is cut."""
    return digest.replace(":", "-")[:128]
