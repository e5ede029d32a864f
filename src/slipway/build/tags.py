"""Names of images: immutable tags, and the aliases that move.

`<branch>-<sha9>-{ci|local}-<YYYYMMDD-HHMM>[-dirty][-<variant>]`. Tags are lower case, since Gitea's
registry folds them, and at most 128 characters (OCI distribution spec 1.1).
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime

MAX_LENGTH = 128
# What a slug must leave room for: -<sha9>-local-<time>-dirty-99-<variant of up to 24>.
_SLUG_LENGTH = 60


def slug(branch: str) -> str:
    """A branch as a part of a tag; where that loses something, a short hash keeps it apart.

    `main` stays `main`; `Feature/X` becomes `feature-x-` and six hex digits, so that it never meets
    `feature-x`.
    """
    kept = re.sub(r"-+", "-", re.sub(r"[^a-z0-9._-]", "-", branch.lower())).strip("-.")
    if kept == branch and len(kept) <= _SLUG_LENGTH:
        return kept
    mark = f"-{hashlib.sha256(branch.encode()).hexdigest()[:6]}"
    return f"{kept[: _SLUG_LENGTH - len(mark)].rstrip('-.') or 'branch'}{mark}"


def _suffix(variant: str, default: str) -> str:
    return "" if variant == default else f"-{variant}"


def stem(branch: str, commit: str, *, ci: bool) -> str:
    """What the tags of all builds of one commit on one branch begin with."""
    return f"{slug(branch)}-{commit[:9]}-{'ci' if ci else 'local'}-"


def image_tag(
    branch: str,
    commit: str,
    *,
    ci: bool,
    moment: datetime,
    dirty: bool = False,
    variant: str,
    default_variant: str,
    number: int = 1,
) -> str:
    """The immutable tag of one build.

    Args:
        moment: when it is built; written in UTC to the minute.
        number: 2 and more for a further build of one commit in one minute with another digest.
    """
    return (
        f"{stem(branch, commit, ci=ci)}{moment.astimezone(UTC):%Y%m%d-%H%M}"
        f"{f'-{number}' if number > 1 else ''}{'-dirty' if dirty else ''}"
        f"{_suffix(variant, default_variant)}"
    )


def alias(branch: str, *, ci: bool, variant: str, default_variant: str) -> str:
    """The name that moves to the newest build of a branch."""
    return f"{slug(branch)}-latest{'' if ci else '-local'}{_suffix(variant, default_variant)}"


def deps_tag(variant: str, key: str) -> str:
    """The name of the deps image with dependency key `key`."""
    return f"deps-{variant}-{key[:12]}"


_IMAGE_TAG = re.compile(
    r"(?P<slug>.+)-(?P<sha>[0-9a-f]{9})-(?P<origin>ci|local)-(?P<time>\d{8}-\d{4})"
    r"(?:-(?P<number>\d{1,2}))?(?P<dirty>-dirty)?(?:-(?P<variant>[a-z0-9][a-z0-9.-]*))?"
)
_ALIAS = re.compile(r".+-latest(?:-local)?(?:-[a-z0-9][a-z0-9.-]*)?")


@dataclass(frozen=True)
class ImageTag:
    """What an immutable tag says of its build; `variant` is "" for the default one."""

    slug: str
    commit: str
    origin: str
    moment: datetime
    variant: str

    @property
    def line(self) -> tuple[str, str, str]:
        """Builds of one line replace each other: branch, origin and variant."""
        return (self.slug, self.origin, self.variant)


def parse_image_tag(tag: str) -> ImageTag | None:
    """Read an immutable tag, or None where it is another name."""
    match = _IMAGE_TAG.fullmatch(tag)
    if match is None:
        return None
    moment = datetime.strptime(match["time"], "%Y%m%d-%H%M").replace(tzinfo=UTC)
    return ImageTag(match["slug"], match["sha"], match["origin"], moment, match["variant"] or "")


def is_alias(tag: str) -> bool:
    """Whether a name may move: `<branch>-latest[-local][-<variant>]`."""
    return _ALIAS.fullmatch(tag) is not None
