"""Publication of an image: blobs, its immutable tag, what it stands on, and the alias last."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from slipway.build import alias as aliases
from slipway.build import base as bases
from slipway.build import tags
from slipway.build.assemble import Assembled
from slipway.build.git import Checkout
from slipway.build.plan import Plan
from slipway.build.remote import Remote
from slipway.errors import TagTakenError
from slipway.image.layout import LayoutStore
from slipway.image.model import Image

if TYPE_CHECKING:
    from slipway.image.registry.progress import Progress


@dataclass(frozen=True)
class Published:
    """What a publication did.

    Attributes:
        reference: `registry/repository:tag@digest`.
        alias: "" where it was left alone, since it names a newer commit.
    """

    reference: str
    alias: str
    bytes_uploaded: int
    bytes_mounted: int
    requests: int

    def to_json(self) -> dict[str, Any]:
        """The result for a machine."""
        return {
            "pushed": self.reference,
            "pushed_alias": self.alias,
            "bytes_pushed": self.bytes_uploaded,
            "bytes_mounted": self.bytes_mounted,
            "requests": self.requests,
        }


def free_tag(plan: Plan, image: Image, remote: Remote, wanted: str) -> str:
    """`wanted`, or with a number where the repository has another image under it.

    Raises:
        TagTakenError: `wanted` is a tag of the caller's own, and taken.
    """
    name = wanted
    for number in range(2, 100):
        taken = remote.manifest(name)
        if taken is None or taken.descriptor.digest == image.digest:
            return name
        if not wanted.startswith(tags.stem(plan.branch, plan.commit, ci=plan.ci)):
            break
        name = plan.numbered_tag(number)
    raise TagTakenError(
        f"{remote.repository}:{name} already names another image than {image.digest}",
        "tags are immutable; choose another with --tag",
    )


def publish(
    checkout: Checkout,
    plan: Plan,
    made: Assembled,
    tag: str,
    remote: Remote,
    store: LayoutStore,
    *,
    attest: bool = False,
    progress: Progress | None = None,
) -> Published:
    """Push an image under `tag`, share its deps image and base, and move the alias.

    Args:
        attest: attach SBOM and provenance before the alias moves.
        progress: told how the layers get on.

    Raises:
        RegistryError: the registry refused.
        NetworkError: it could not be reached.
    """
    from slipway.image.registry import push_image

    repository = remote.repository
    image, deps = _mountable(made.image, plan, remote), _mountable(made.deps, plan, remote)
    before = repository.requests
    known = {
        blob.digest
        for name in (plan.alias, plan.deps_tag)
        if (manifest := remote.manifest(name))
        for blob in (manifest.config, *manifest.layers)
    }
    # Where nothing more is pushed than the image, its read-back is the last moment to look.
    last = remote.manifest(plan.deps_tag) is not None and not attest
    report = push_image(
        image,
        repository,
        [tag],
        known=known,
        progress=progress,
        meanwhile=(lambda: remote.manifest(plan.alias, again=True)) if last else None,
    )
    there = [layer.descriptor.digest for layer in image.layers]
    if remote.manifest(plan.deps_tag) is None:
        push_image(deps, repository, [plan.deps_tag], known=there)
        _share_base(plan, remote, store, there)
    if attest:
        from slipway.build.attest import attach_all

        attach_all(repository, image, plan)
    alias = aliases.move(checkout, plan, image, remote, again=not last)
    return Published(
        f"{repository}:{tag}@{image.digest}",
        alias,
        report.bytes_uploaded,
        report.bytes_mounted,
        repository.requests - before,
    )


def _mountable(image: Image, plan: Plan, remote: Remote) -> Image:
    """`image` with the base's layers to be mounted where the base lies in the same registry."""
    base = plan.base.image
    reference = plan.variant.base.reference
    if base is None or not plan.base.origin.startswith("registry"):
        return image
    if not str(remote.repository).startswith(f"{reference.registry}/"):
        return image
    theirs = {layer.descriptor.digest for layer in base.layers}
    layers = tuple(
        replace(layer, mount_from=reference) if layer.descriptor.digest in theirs else layer
        for layer in image.layers
    )
    return replace(image, layers=layers)


def _share_base(plan: Plan, remote: Remote, store: LayoutStore, there: list[str]) -> None:
    """Let other machines build on the rootfs that was made here."""
    from slipway.image.registry import push_image

    name = bases.shared_tag(plan.variant)
    if plan.base.origin.startswith("rootfs") and name and remote.manifest(name) is None:
        noted = store.read_image(bases.tag(plan.variant))
        if noted is not None:
            push_image(noted, remote.repository, [name], known=there)
