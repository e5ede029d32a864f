"""Which images may go: old builds that nothing refers to any more.

Never removed: what an alias or a release tag names, what a committed deployment pins by digest, the
newest builds of every branch and variant, and the deps images and bases that all of these stand on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from slipway.build import tags
from slipway.build.catalog import Local, Shared, Shelf
from slipway.build.plan import DEPENDENCY_KEY

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class Verdict:
    """One image and what becomes of it; `why` is for people."""

    digest: str
    names: tuple[str, ...]
    keep: bool
    why: str


def pinned_digests(root: Path) -> set[str]:
    """Digests that committed deployments name (`deploy/**`)."""
    found: set[str] = set()
    for path in sorted((root / "deploy").rglob("*")):
        if path.is_file() and path.suffix in (".yml", ".yaml", ".toml", ".json", ".md", ".env"):
            found |= set(_DIGEST.findall(path.read_text(errors="replace")))
    return found


def judge(
    names: Mapping[str, str],
    dependency_keys: Mapping[str, str],
    pinned: set[str],
    *,
    keep: int,
    keep_days: int,
    now: datetime,
) -> list[Verdict]:
    """Decide for every image.

    Args:
        names: digest by tag.
        dependency_keys: dependency key by digest, of images that have one.
        pinned: digests that deployments name.
        keep: how many builds of each branch, origin and variant stay.
        keep_days: builds younger than this stay.
    """
    by_digest: dict[str, list[str]] = {}
    for name, digest in names.items():
        by_digest.setdefault(digest, []).append(name)
    kept: dict[str, str] = {}
    for digest, own in by_digest.items():
        if digest in pinned:
            kept[digest] = "a deployment pins it"
        for name in own:
            if tags.is_alias(name):
                kept[digest] = f"{name} names it"
            elif not _is_temporary(name):
                kept[digest] = f"{name} is a release"
    kept |= {d: why for d, why in _newest(names, keep, keep_days, now).items() if d not in kept}
    needed = {dependency_keys.get(digest, "")[:12] for digest in kept} - {""}
    for digest, own in by_digest.items():
        if any(name.startswith("deps-") and name[-12:] in needed for name in own):
            kept.setdefault(digest, "images that stay stand on it")
        if any(name.startswith("base-") for name in own):
            kept.setdefault(digest, "it is a base")
    subjects = kept.keys() | pinned
    for digest, own in by_digest.items():
        # The list of what refers to an image, where a registry keeps it under a tag (spec 1.1).
        if any(name.replace("sha256-", "sha256:", 1) in subjects for name in own):
            kept.setdefault(digest, "it refers to an image that stays")
    verdicts = []
    for digest, own in by_digest.items():
        why = kept.get(digest, "")
        reason = why or f"older than the last {keep} and than {keep_days} days"
        verdicts.append(Verdict(digest, tuple(sorted(own)), bool(why), reason))
    return sorted(verdicts, key=lambda verdict: verdict.names)


def _is_temporary(name: str) -> bool:
    return name.startswith(("deps-", "base-", "sha256-")) or tags.parse_image_tag(name) is not None


def _newest(names: Mapping[str, str], keep: int, keep_days: int, now: datetime) -> dict[str, str]:
    lines: dict[tuple[str, str, str], list[tuple[datetime, str]]] = {}
    for name, digest in names.items():
        if tag := tags.parse_image_tag(name):
            lines.setdefault(tag.line, []).append((tag.moment, digest))
    kept = {}
    for builds in lines.values():
        for number, (moment, digest) in enumerate(sorted(builds, reverse=True)):
            if number < keep:
                kept[digest] = f"one of the last {keep}"
            elif now - moment < timedelta(days=keep_days):
                kept[digest] = f"younger than {keep_days} days"
    return kept


def prune(
    shelf: Local | Shared, root: Path, *, keep: int, keep_days: int, dry_run: bool
) -> list[Verdict]:
    """Judge all images of a shelf, and remove those that may go.

    Raises:
        RegistryError: the registry does not allow deleting.
    """
    names = shelf.names()
    verdicts = judge(
        names,
        _dependency_keys(shelf, set(names.values())),
        pinned_digests(root),
        keep=keep,
        keep_days=keep_days,
        now=datetime.now(UTC),
    )
    going = [verdict for verdict in verdicts if not verdict.keep]
    if not dry_run:
        _remove(shelf, going)
    return verdicts


def _dependency_keys(shelf: Shelf, digests: Iterable[str]) -> dict[str, str]:
    keys = {}
    for digest in digests:
        if (image := shelf.image(digest)) is not None:
            labels = image.labels
            keys[digest] = labels.get(DEPENDENCY_KEY, "")
    return keys


def _remove(shelf: Local | Shared, verdicts: Iterable[Verdict]) -> None:
    if isinstance(shelf, Shared):
        for verdict in verdicts:
            shelf.remote.repository.delete(verdict.digest)
        return
    for verdict in verdicts:
        for name in verdict.names:
            shelf.store.untag(name)
    shelf.store.collect()
