"""What a build leaves for the jobs after it: a record that refers to the image in the registry.

Job outputs of a matrix overwrite each other and artifacts need actions that not every server has;
the registry is there anyway. A record is an OCI artifact whose subject is the image.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from slipway.image.descriptor import EMPTY, MANIFEST, Descriptor
from slipway.image.model import canonical_json
from slipway.image.registry import Repository

RECORD = "application/vnd.slipway.build-record.v1+json"
_NOTE = "org.slipway.record"


def artifact(
    kind: str,
    config: Descriptor,
    layers: list[Descriptor],
    annotations: Mapping[str, str],
    subject: Descriptor | None = None,
) -> bytes:
    """The manifest of an OCI artifact (image spec 1.1, "Guidelines for Artifact Usage")."""
    value: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "artifactType": kind,
        "config": config.to_json(),
        "layers": [layer.to_json() for layer in layers],
        "annotations": dict(annotations),
    }
    if subject is not None:
        value["subject"] = subject.to_json()
    return canonical_json(value)


def write(repository: Repository, subject: Descriptor, facts: Mapping[str, Any]) -> None:
    """Attach the facts of one build to its image."""
    empty = repository.put_bytes(b"{}", EMPTY)
    notes = {_NOTE: canonical_json(dict(facts)).decode()}
    repository.attach(artifact(RECORD, empty, [empty], notes, subject))


def read(repository: Repository, digest: str, run: str) -> dict[str, Any]:
    """The facts that one run's build left at an image; empty where it left none."""
    for entry in repository.referrers(digest, RECORD):
        found = repository.manifest(entry.digest)
        if found is None:
            continue
        facts = json.loads(json.loads(found[1]).get("annotations", {}).get(_NOTE, "{}"))
        if facts.get("run") == run:
            return dict(facts)
    return {}
