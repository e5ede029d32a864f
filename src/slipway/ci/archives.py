"""Archives of a push: packed for every topology of a variant, published as OCI artifacts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from slipway.build.git import Checkout
from slipway.build.tags import MAX_LENGTH
from slipway.ci import gitea, record
from slipway.ci.results import Result
from slipway.deploy.built import pin
from slipway.deploy.load import load_all
from slipway.deploy.pack import Packed, pack, source_date, write_archive
from slipway.errors import UsageError
from slipway.image.descriptor import EMPTY, MANIFEST
from slipway.image.model import sha256
from slipway.image.reference import Reference
from slipway.image.registry import Registry, Repository
from slipway.image.registry.auth import find_credentials

ARCHIVE = "application/vnd.slipway.deployment.v1"
LAYER = "application/vnd.slipway.deployment.v1.tar+zstd"
TITLE = "org.opencontainers.image.title"


@dataclass(frozen=True)
class Published:
    """An archive in a registry and, as a file, here."""

    reference: Reference
    path: Path
    image: Reference


def repository_of(target: Reference) -> str:
    """Archives lie beside the images: retention of images never looks at them."""
    return f"{target.repository}-deploy"


def make(
    checkout: Checkout, results: Iterable[Result], target: Reference, folder: Path
) -> list[Published]:
    """Pack and publish the archives of every image, each pinned to the image's digest.

    Equal archives give equal artifacts, so a second run publishes nothing new.

    Raises:
        ConfigError: a site cannot be rendered.
        RegistryError, NetworkError: the registry refused, or could not be reached.
    """
    plans = load_all(checkout.root)
    repository = Registry(target.registry).repository(repository_of(target))
    published = []
    for result in results:
        if not result.digest:
            continue
        image = pin(f"{target.name}:{result.tag}@{result.digest}")
        mtime = source_date(int(checkout.text("show", "-s", "--format=%ct", result.commit)))
        for plan in plans.values():
            if plan.site.image_variant != result.variant:
                continue
            for topology in plan.topologies.values():
                packed = pack(plan, topology, image, mtime)
                tag = f"{plan.deployment(topology.name)}-{result.tag}"
                notes = {"org.slipway.image": str(packed.image), TITLE: packed.name}
                push(repository, packed, tag, notes)
                reference = Reference(repository.name, target.registry, tag)
                published.append(Published(reference, write_archive(packed, folder), packed.image))
    return published


def upload(archives: Iterable[Published], target: Reference, server_url: str) -> list[str]:
    """Put archives into generic packages too, for people without an OCI client; gives addresses.

    Only where the registry is the Gitea server that runs the workflow; others have none.

    Raises:
        RunnerError, NetworkError: the server refused, or could not be reached.
    """
    credentials = find_credentials(target.registry)
    if urlsplit(server_url).netloc != target.registry or credentials is None:
        return []
    owner, _, name = repository_of(target).partition("/")
    return [
        gitea.upload_package(server_url, owner, credentials, name, one.reference.tag, one.path)
        for one in archives
    ]


def push(repository: Repository, packed: Packed, tag: str, notes: Mapping[str, str]) -> str:
    """Publish one archive under a tag; gives the artifact's digest.

    Raises:
        UsageError: the tag would be too long.
    """
    if len(tag) > MAX_LENGTH:
        raise UsageError(f"{tag} is longer than {MAX_LENGTH} characters", "shorten the branch")
    empty = repository.put_bytes(b"{}", EMPTY)
    layer = repository.put_bytes(packed.content, LAYER)
    manifest = record.artifact(ARCHIVE, empty, [layer], notes)
    repository.put_manifest(manifest, MANIFEST, tag)
    return sha256(manifest)
