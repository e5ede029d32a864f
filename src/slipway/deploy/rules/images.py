"""Whether the image that starts today is the one that starts tomorrow."""

from __future__ import annotations

import re
from collections.abc import Iterator

from slipway.deploy.check import Found, Rule, Severity, at
from slipway.deploy.scene import Scene

# A tag that names a commit and the time of its build, as `slipway image build` writes them.
_PINNED_TAG = re.compile(r"-[0-9a-f]{9}-(ci|local)-\d{8}-\d{4}")


def _pinned(scene: Scene) -> Iterator[Found]:
    for seen in scene.services:
        service = seen.service
        if not service.image or "@sha256:" in service.image or service.image_guarded:
            continue
        if service.image.endswith(">"):  # a variable that nobody has set: nothing is known of it
            continue
        tag = service.image.rpartition("/")[2].partition(":")[2]
        moves = "a tag that is made to move" if tag in ("", "latest") else "a tag, which can move"
        if _PINNED_TAG.search(tag):
            moves = "a tag of one build, which a registry may still give to another"
        yield at(
            seen,
            f"image {service.image} is not pinned: it is named by {moves}",
            "write it by digest (name@sha256:…), or let `slipway deploy pack` pin it",
        )


RULES: tuple[Rule, ...] = (
    Rule(
        "image-pinned",
        Severity.WARNING,
        "an image that can change under its name",
        "tags move; digests do not",
        _pinned,
    ),
)
