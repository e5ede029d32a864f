"""Moves the alias of a branch: forward only, and to the newest commit that has an image.

A registry has no compare-and-swap, and a runner's clone knows nothing of what was pushed after it
was made. Both are met by one order of events: every build publishes its immutable tag before it
touches the alias, and looks at all tags after it has. Whoever writes last therefore sees the tag of
whoever built something newer, and gives that one the alias.
"""

from __future__ import annotations

from collections.abc import Iterable

from slipway.build import tags
from slipway.build.git import Checkout
from slipway.build.plan import COMMIT, Plan
from slipway.build.remote import Remote
from slipway.errors import RegistryError
from slipway.image.descriptor import MANIFEST
from slipway.image.model import Image

# Each turn follows a newer image that was published within the turn before.
_MOST_TURNS = 20


def move(checkout: Checkout, plan: Plan, image: Image, remote: Remote, *, again: bool) -> str:
    """Give `image` the alias of its branch; returns the alias, or "" where a newer commit has it.

    Builds of CI race each other and settle it here; those of a person do not, and the last wins.

    Args:
        again: ask once more what it names: while this image was built, a newer one may have come.

    Raises:
        RegistryError: newer images kept coming.
    """
    latest = remote.manifest(plan.alias, again=again)
    if latest is not None:
        if latest.descriptor.digest == image.digest:
            return plan.alias
        named = latest.annotations.get(COMMIT, "")
        if named and named != plan.commit and _is_newer(checkout, plan, named):
            return ""
    repository = remote.repository
    repository.put_manifest(image.manifest_bytes, MANIFEST, plan.alias)
    if not plan.ci:
        return plan.alias
    holder = ""
    for _ in range(_MOST_TURNS):
        newest = _newest(checkout, plan, repository.tags())
        if newest == holder:
            return "" if holder else plan.alias
        if (found := repository.manifest(newest)) is not None:
            repository.put_manifest(found[1], found[0].media_type, plan.alias)
        holder = newest
    raise RegistryError(f"{repository}:{plan.alias} did not come to rest", "run it again")


def _is_newer(checkout: Checkout, plan: Plan, commit: str) -> bool:
    """Whether `commit` comes after the plan's; what this clone does not know it asks origin for."""
    known = checkout.is_ancestor(plan.commit, commit)
    if known is None and plan.ci and checkout.fetch(plan.branch):
        known = checkout.is_ancestor(plan.commit, commit)
    return bool(known)


def _newest(checkout: Checkout, plan: Plan, there: Iterable[str]) -> str:
    """The tag of the newest image of the plan's line whose commit comes after the plan's, or ""."""
    variant = "" if plan.variant.name == plan.matrix.default_variant else plan.variant.name
    line = (tags.slug(plan.branch), "ci", variant)
    images = [
        (image.moment, tag, image.commit)
        for tag in there
        if (image := tags.parse_image_tag(tag)) is not None and image.line == line
    ]
    by_commit = {commit: tag for _, tag, commit in sorted(images)}
    if not all(checkout.knows(by_commit)):
        checkout.fetch(plan.branch)
    for commit in checkout.since(plan.commit, plan.branch):
        if tag := by_commit.get(commit[:9]):
            return tag
    return ""
