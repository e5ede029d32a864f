"""Chooses the image that an archive pins: what was last built here, or what one is told."""

from __future__ import annotations

import re
from dataclasses import dataclass

from slipway.build import matrix as matrices
from slipway.build.git import Checkout
from slipway.build.tags import alias
from slipway.deploy.model import Site
from slipway.errors import UsageError
from slipway.image.layout import LayoutStore
from slipway.image.reference import Reference, parse

# Where an image that no registry has is offered while `slipway deploy up` pulls it. Docker
# allows plain HTTP on loopback. The port is fixed so that one image gives one archive; it lies
# outside of the ranges for outgoing connections (32768 upwards on Linux, 49152 upwards
# elsewhere) and of Kubernetes' node ports (30000-32767), and no registry uses it by default.
LOOPBACK = "127.0.0.1:29870"

# Names in the store that are no immutable tags of images: aliases, deps images, bases.
_MOVES = re.compile(r".+-latest(?:-local)?(?:-[a-z0-9-]+)?|(?:deps|base)-.+")


@dataclass(frozen=True)
class PinnedImage:
    """An image by digest, and the immutable tag that it was built as."""

    reference: Reference
    tag: str


def pin(text: str, tag: str = "") -> PinnedImage:
    """The image that a reference by digest names, taken as it is.

    Args:
        text: `name[:tag]@sha256:…`.
        tag: what the archive is named after; without one the reference's, or its digest.

    Raises:
        UsageError: the text is no reference, or has no digest.
    """
    reference = parse(text)
    if not reference.digest:
        raise UsageError(
            f"{text} is not pinned by digest",
            "write name@sha256:…; `slipway image build` and `docker pull` print it",
        )
    return PinnedImage(reference, tag or reference.tag or reference.digest.partition(":")[2][:12])


def find_built(
    checkout: Checkout,
    store: LayoutStore,
    site: Site,
    *,
    tag: str = "",
    registry: str = "",
    repository: str = "",
) -> PinnedImage:
    """An image that was built here: the one with a tag, else the newest of the branch.

    Args:
        checkout: its branch and matrix are asked.
        store: where built images lie.
        site: its variant of the image is taken.
        tag: a name in the store, instead of the branch's aliases.
        registry, repository: where the image was pushed; without, `LOOPBACK` and the matrix's.

    Raises:
        UsageError: the store has no such image; the remedy lists what it has.
        IntegrityError: the store is damaged.
    """
    matrix = matrices.load(checkout.root)
    wanted = [tag] if tag else _aliases(checkout, site, matrix.default_variant)
    names = store.tags()
    # A name that moves goes to the end, so the last one is the newest.
    found = next((names[name].digest for name in reversed(list(names)) if name in wanted), None)
    fixed = [name for name in names if not _MOVES.fullmatch(name)]
    if found is None:
        if not fixed:
            raise UsageError(f"no image was built yet: {store.root} has none", "make image")
        raise UsageError(
            f"{store.root} has no image named {' or '.join(wanted)}",
            f"make image, or choose one with --tag: {', '.join(fixed[-5:])}",
        )
    tags = [name for name in fixed if names[name].digest == found]
    name = f"{registry or LOOPBACK}/{repository or matrix.repository}@{found}"
    return pin(name, tag or (tags[-1] if tags else ""))


def _aliases(checkout: Checkout, site: Site, default: str) -> list[str]:
    branch, variant = checkout.branch(), site.image_variant
    return [alias(branch, ci=ci, variant=variant, default_variant=default) for ci in (True, False)]
