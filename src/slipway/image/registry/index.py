"""An index: one name for the images of several platforms (OCI image spec 1.1, image-index.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from slipway.errors import IntegrityError, TagTakenError, UsageError
from slipway.image.descriptor import INDEX, Descriptor
from slipway.image.model import Image, canonical_json
from slipway.image.registry.repository import Repository


def make_index(images: Iterable[Image], annotations: Mapping[str, str] | None = None) -> bytes:
    """An index's bytes; the same images give the same, in whatever order they come.

    Raises:
        UsageError: there is no image, or two are for one platform.
    """
    entries = sorted(
        (replace(image.descriptor, annotations={}, platform=image.platform) for image in images),
        key=lambda entry: str(entry.platform),
    )
    platforms = [str(entry.platform) for entry in entries]
    if not entries or len(set(platforms)) < len(platforms):
        raise UsageError(f"an index names one image a platform, not {platforms}")
    return canonical_json(
        {
            "schemaVersion": 2,
            "mediaType": INDEX,
            "manifests": [entry.to_json() for entry in entries],
            **({"annotations": dict(sorted(annotations.items()))} if annotations else {}),
        }
    )


def push_index(
    images: Iterable[Image],
    repository: Repository,
    tag: str,
    annotations: Mapping[str, str] | None = None,
) -> Descriptor:
    """Publish an index of images that the repository has already, and read it back.

    The tag never moves; a second run with the same images changes nothing.

    Raises:
        TagTakenError: it names something else.
        RegistryError: the registry refused, e.g. since it lacks one of the images.
        IntegrityError: what is there afterwards is not this index.
    """
    data = make_index(images, annotations)
    there = repository.manifest(tag)
    if there is None:
        repository.put_manifest(data, INDEX, tag)
        there = repository.manifest(tag)
        if there is None or there[1] != data:
            raise IntegrityError(f"{repository}:{tag} was written and reads otherwise")
    elif there[1] != data:
        raise TagTakenError(
            f"{repository}:{tag} already names {there[0].digest}",
            "a published tag never changes: release under the next version",
        )
    return there[0]
