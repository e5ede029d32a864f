"""One build from plan to names: make the image, tag it, move the alias, and say what came out."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipway.build import tags
from slipway.build.assemble import assemble
from slipway.build.git import Checkout, find_checkout
from slipway.build.plan import Plan, load_and_decide
from slipway.build.publish import Published, free_tag, publish
from slipway.build.remote import Remote
from slipway.errors import NetworkError, TagTakenError
from slipway.image.descriptor import Descriptor
from slipway.image.layout import LayoutStore
from slipway.image.model import Image
from slipway.image.reference import Reference

if TYPE_CHECKING:
    from slipway.image.registry.progress import Progress

STORE = Path("dist/images")


@dataclass(frozen=True)
class Built:
    """What a build gave.

    Attributes:
        alias: "" where it was left alone, since it names a newer commit.
        seconds: from the start of planning to the last name.
    """

    plan: Plan
    image: Image
    tag: str
    alias: str
    seconds: float
    published: Published | None = None

    def to_json(self) -> dict[str, Any]:
        """The result for a machine."""
        return {
            **self.plan.to_json(),
            "repository": self.plan.matrix.repository,
            "tag": self.tag,
            "alias": self.alias,
            "digest": self.image.digest,
            "bytes": self.image.size,
            "layers": len(self.image.layers),
            "seconds": round(self.seconds, 3),
            **(self.published.to_json() if self.published else {}),
        }


def build(
    start: Path,
    variant: str,
    store_path: Path | None,
    cache: Path,
    *,
    tag: str = "",
    full: bool = False,
    target: Reference | None = None,
    push: bool = False,
    attest: bool | None = None,
    builder: str = "",
    progress: Progress | None = None,
    say: Callable[[str], None],
) -> Built:
    """Build the variant of the checkout around `start`.

    Args:
        store_path: the layout store; None for `dist/images` of the checkout.
        tag: an immutable tag of the caller's own instead of the usual one.
        target: registry and repository whose images serve as a cache; an empty repository means
            the matrix's.
        push: publish the image there. Layers that it has already are not brought here then.
        attest: attach SBOM and provenance to what is pushed; by default in CI.
        builder: another one than the matrix names.
        progress: told how a push gets on.
    """
    begin = time.perf_counter()
    store, remote, checkout, plan = _decide(
        find_checkout(start),
        variant,
        store_path,
        cache,
        full=full,
        target=target,
        push=push,
        builder=builder,
        say=say,
    )
    if plan.version.guess:
        say(f"version {plan.version.text} is a guess: {plan.version.guess}")
    say(f"base: {plan.base.origin} ({plan.base.why})")
    say(plan.sentence)
    with store.building():
        made = assemble(checkout, plan, store, cache, say, remote, sparse=push)
        name = _name(store, plan, made.image, tag, remote if push else None)
        published = None
        if remote is not None and push:
            published = publish(
                checkout,
                plan,
                made,
                name,
                remote,
                store,
                attest=plan.ci if attest is None else attest,
                progress=progress,
            )
        alias = _move_alias(checkout, store, plan, made.image)
    return Built(plan, made.image, name, alias, time.perf_counter() - begin, published)


def plan(
    start: Path,
    variant: str,
    store_path: Path | None,
    cache: Path,
    *,
    full: bool = False,
    target: Reference | None = None,
    builder: str = "",
    unbuilt: bool = False,
    say: Callable[[str], None],
) -> Plan:
    """What `build` would do.

    Args:
        unbuilt: say so even where the base cannot be had from here.
    """
    *_, decided = _decide(
        find_checkout(start),
        variant,
        store_path,
        cache,
        full=full,
        target=target,
        push=False,
        builder=builder,
        unbuilt=unbuilt,
        say=say,
    )
    return decided


def _decide(
    checkout: Checkout,
    variant: str,
    store_path: Path | None,
    cache: Path,
    *,
    full: bool,
    target: Reference | None,
    push: bool,
    builder: str,
    say: Callable[[str], None],
    unbuilt: bool = False,
) -> tuple[LayoutStore, Remote | None, Checkout, Plan]:
    store = LayoutStore(store_path or checkout.root / STORE)
    ci = os.environ.get("CI") == "true" and "SLIPWAY_LOCAL" not in os.environ
    remote = _remote(checkout, store, target, push) if target else None

    def decide(remote: Remote | None) -> Plan:
        return load_and_decide(
            checkout,
            variant,
            store,
            cache,
            remote,
            full=full,
            ci=ci,
            builder=builder,
            unbuilt=unbuilt,
        )

    try:
        plan = decide(remote)
    except NetworkError as error:
        if push or remote is None:
            raise
        say(f"{remote.repository} is not looked into: {error.what}")
        remote = None
        plan = decide(None)
    return store, remote, checkout, plan


def _remote(checkout: Checkout, store: LayoutStore, target: Reference, push: bool) -> Remote:
    from slipway.build import matrix as matrices
    from slipway.image.registry import Registry

    name = target.repository or matrices.load(checkout.root).repository
    registry = Registry(target.registry) if push else Registry(target.registry, attempts=1)
    return Remote(registry.repository(name), store, publishing=push)


def _name(store: LayoutStore, plan: Plan, image: Image, tag: str, remote: Remote | None) -> str:
    """Give the image its immutable tag; a second image of one minute gets the next number.

    Args:
        remote: a repository where the tag must be free as well.
    """
    if tag:
        if remote is not None:
            free_tag(plan, image, remote, tag)
        store.tag(tag, image.descriptor)
        return tag
    if kept := _name_of_before(store, plan, image):
        return kept
    name = plan.tag if remote is None else free_tag(plan, image, remote, plan.tag)
    for number in range(2, 100):
        try:
            store.tag(name, image.descriptor)
        except TagTakenError:
            name = plan.numbered_tag(number)
        else:
            return name
    raise TagTakenError(f"{plan.tag} and 98 numbers after it are taken", "wait a minute")


def _name_of_before(store: LayoutStore, plan: Plan, image: Image) -> str:
    """The tag that an earlier build of the same commit gave to the same image, or ""."""
    stem = tags.stem(plan.branch, plan.commit, ci=plan.ci)
    names = [name for name, named in store.tags().items() if named.digest == image.digest]
    return next((name for name in names if name.startswith(stem)), "")


def _move_alias(checkout: Checkout, store: LayoutStore, plan: Plan, image: Image) -> str:
    """Move the alias, but never from a commit to one before it."""

    def may(taken: Descriptor) -> bool:
        there = store.read_image(taken.digest)
        named = there.labels.get("org.slipway.commit", "") if there else ""
        return named in ("", plan.commit) or not checkout.is_ancestor(plan.commit, named)

    return plan.alias if store.advance(plan.alias, image.descriptor, may) else ""
