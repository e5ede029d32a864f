"""Finds what `slipway image build` left in the layout store, by the names in its index."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from slipway.errors import StorageError, UsageError

REF_NAME = "org.opencontainers.image.ref.name"
_ALIAS = re.compile(r"(?P<branch>.+)-latest(?:-local)?(?:-(?P<variant>[a-z0-9-]+))?")
_TIME = re.compile(r"-(?:ci|local)-(\d{8}-\d{4})")


@dataclass(frozen=True)
class Built:
    """An image in the layout store: its digest, its immutable tag, and all its names."""

    digest: str
    tag: str
    names: tuple[str, ...]


def built_images(store: Path) -> list[Built]:
    """Every named image of a layout store; empty where there is no store yet.

    Raises:
        StorageError: the store's index cannot be read.
    """
    index = store / "index.json"
    names: dict[str, list[str]] = {}
    try:
        for entry in json.loads(index.read_bytes())["manifests"]:
            if name := entry.get("annotations", {}).get(REF_NAME, ""):
                names.setdefault(entry["digest"], []).append(_tag_of(name))
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageError(
            f"{index} is no index of an image layout ({error!r})", f"remove {store}; build again"
        ) from None
    return [
        Built(digest, next((n for n in found if not _ALIAS.fullmatch(n)), found[0]), tuple(found))
        for digest, found in names.items()
    ]


def find_built(store: Path, *, tag: str = "", branch: str = "", variant_suffix: str = "") -> Built:
    """One image of the store: the one with a tag, else the one that the branch's alias names.

    Where both `<branch>-latest` and `<branch>-latest-local` are there, the newer tag counts.

    Raises:
        UsageError: there is none; the remedy lists what there is.
    """
    images = built_images(store)
    wanted = [tag] if tag else [f"{branch}-latest{w}{variant_suffix}" for w in ("", "-local")]
    found = [image for image in images if set(wanted) & set(image.names)]
    if found:
        return max(found, key=lambda image: _time(image.tag))
    if not images:
        raise UsageError(f"no image was built yet: {store} has none", "make image")
    there = sorted(name for image in images for name in image.names)
    raise UsageError(
        f"{store} has no image named {' or '.join(wanted)}",
        f"make image, or choose one with --tag: {', '.join(there[:8])}",
    )


def _time(tag: str) -> str:
    match = _TIME.search(tag)
    return match[1] if match else ""


def _tag_of(name: str) -> str:
    """A name in the index is a tag, or a whole reference that ends in one."""
    last = name.rpartition("/")[2]
    return last.rpartition(":")[2]
