"""What an image is made of and how it was made, in the forms that others read.

An SBOM (CycloneDX 1.6) of what its layers install, and an in-toto statement with SLSA provenance.
Both follow from the image alone, so that equal images have equal statements; both are attached to
it in a registry as referrers (OCI distribution spec 1.1).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from slipway.build.plan import COMMIT, DEPENDENCY_KEY
from slipway.errors import IntegrityError
from slipway.image import contents
from slipway.image.contents import Package
from slipway.image.descriptor import EMPTY, MANIFEST, Descriptor
from slipway.image.model import Image, canonical_json

if TYPE_CHECKING:
    from slipway.build.plan import Plan
    from slipway.image.registry import Repository

SBOM = "application/vnd.cyclonedx+json"
PROVENANCE = "application/vnd.in-toto+json"
BUILD_TYPE = "https://slipway.invalid/assemble/v1"

_LABEL = "org.opencontainers.image."


def sbom(image: Image, *, deep: bool = False) -> dict[str, Any]:
    """The image's software bill of materials.

    Args:
        deep: read every layer, instead of what their descriptors note. Layers of a foreign base
            have no notes: without `deep` it is one component, by its digest.
    """
    labels = image.labels
    found: list[tuple[Package, str]] = []
    if deep:
        found = [(p, "") for p in contents.packages(contents.read(image.layers))]
    else:
        for layer in image.layers:
            noted = contents.noted_packages(layer) or []
            found += [(package, layer.descriptor.digest) for package in noted]
    base = labels.get(f"{_LABEL}base.digest", "")
    components = [_component(package, digest) for package, digest in sorted(found, key=str)]
    components.append(
        {
            "type": "container",
            "bom-ref": f"base@{base}",
            "name": labels.get(f"{_LABEL}base.name", ""),
            "hashes": [{"alg": "SHA-256", "content": base.partition(":")[2]}],
        }
    )
    serial = uuid.uuid5(uuid.NAMESPACE_OID, image.digest)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {
            "timestamp": image.created,
            "tools": {"components": [{"type": "application", "name": "slipway"}]},
            "component": {
                "type": "container",
                "bom-ref": image.digest,
                "name": labels.get(f"{_LABEL}title", ""),
                "version": labels.get(f"{_LABEL}version", ""),
                "properties": [
                    {"name": name, "value": labels.get(name, "")}
                    for name in (COMMIT, DEPENDENCY_KEY, "org.slipway.variant")
                ],
            },
        },
        "components": components,
    }


def _component(package: Package, layer: str) -> dict[str, Any]:
    namespace = "debian/" if package.kind == "deb" else ""
    purl = f"pkg:{package.kind}/{namespace}{quote(package.name)}@{quote(package.version)}"
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": purl,
        "name": package.name,
        "version": package.version,
        "purl": purl,
    }
    if package.licence:
        component["licenses"] = [{"expression": package.licence}]
    if layer:
        component["properties"] = [{"name": "slipway:layer", "value": layer}]
    return component


def listed(bom: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Names and versions of the packages in an SBOM."""
    return {
        (component["name"], component["version"])
        for component in bom.get("components", [])
        if component.get("purl")
    }


def against_layers(bom: Mapping[str, Any], tree: contents.Tree) -> list[str]:
    """Where an SBOM and what layers really install differ."""
    said = listed(bom)
    there = {(package.name, package.version) for package in contents.packages(tree)}
    return [
        *(f"the SBOM lists {n} {v}, which is not installed" for n, v in sorted(said - there)),
        *(f"{n} {v} is installed, and the SBOM does not list it" for n, v in sorted(there - said)),
    ]


def provenance(image: Image, plan: Plan) -> dict[str, Any]:
    """How the image was made: in-toto statement v1 with the predicate SLSA provenance v1."""
    lock = canonical_json(plan.key.inputs["lock"]).decode()
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            {
                "name": plan.matrix.repository,
                "digest": {"sha256": image.digest.partition(":")[2]},
            }
        ],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {
                    "variant": plan.variant.name,
                    "source": plan.engine.source,
                    "platform": str(image.platform),
                },
                "internalParameters": {
                    "dependencyKey": plan.key.value,
                    "dirty": plan.dirty,
                    "version": plan.version.text,
                },
                "resolvedDependencies": [
                    {"uri": "git+HEAD", "digest": {"gitCommit": plan.commit}},
                    {
                        "uri": plan.base.name,
                        "digest": {"sha256": plan.base.digest.partition(":")[2]},
                    },
                    *(
                        [{"uri": str(plan.variant.lock), "content": lock}]
                        if plan.variant.lock
                        else []
                    ),
                ],
            },
            "runDetails": {"builder": {"id": "slipway"}},
        },
    }


def attach(
    repository: Repository, image: Image, statement: Mapping[str, Any], kind: str
) -> Descriptor:
    """Attach a statement to an image in a registry; the same one twice is one.

    Raises:
        RegistryError: the registry refused.
    """
    empty = repository.put_bytes(b"{}", EMPTY)
    blob = repository.put_bytes(canonical_json(statement), kind)
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "artifactType": kind,
        "config": empty.to_json(),
        "layers": [blob.to_json()],
        "subject": image.descriptor.to_json(),
        "annotations": {"org.opencontainers.image.created": image.created},
    }
    return repository.attach(canonical_json(manifest))


def attached(repository: Repository, digest: str, kind: str) -> list[dict[str, Any]]:
    """Statements of a kind that are attached to an image.

    Raises:
        IntegrityError: one is not what its digest says.
    """
    statements = []
    for referrer in repository.referrers(digest, kind):
        found = repository.manifest(referrer.digest)
        if found is None:
            raise IntegrityError(f"{repository}: referrer {referrer.digest} is not there")
        [blob] = json.loads(found[1])["layers"]
        with repository.open(Descriptor.from_json(blob)) as stream:
            statements.append(json.load(stream))
    return statements


def attach_all(repository: Repository, image: Image, plan: Plan) -> Iterable[Descriptor]:
    """Attach SBOM and provenance."""
    return [
        attach(repository, image, sbom(image), SBOM),
        attach(repository, image, provenance(image, plan), PROVENANCE),
    ]
