"""What an image's tag says: a release, a build date; and whether that is enough for a need."""

from __future__ import annotations

import re

from slipway.cookbook.recipe import Image, Need

_RELEASE = re.compile(r"(?:^|[^0-9.])v?([0-9]+)\.([0-9]+)\.([0-9]+)(?:\.post([0-9]+))?(?![0-9])")
_DATE = re.compile(r"(?:^|-)(20[0-9]{6})(?:-|$)")


def tag_of(reference: str) -> str:
    """The tag of an image reference; "" where it has none."""
    last = reference.split("@")[0].rsplit("/", 1)[-1]
    return last.partition(":")[2]


def release(text: str) -> tuple[int, int, int, int] | None:
    """(major, minor, patch, post) of a version or tag; None where it states no release."""
    found = _RELEASE.search(text)
    if found is None:
        return None
    major, minor, patch, post = found.groups(default="0")
    return int(major), int(minor), int(patch), int(post)


def build_date(tag: str) -> str:
    """YYYYMMDD of a dated build's tag, or ""."""
    found = _DATE.search(tag)
    return found.group(1) if found else ""


def version_of(image: Image) -> str:
    """The release that an image carries, as text; "" where neither tag nor recipe says."""
    found = release(tag_of(image.reference)) or release(image.version)
    if found is None:
        return ""
    return ".".join(map(str, found[:3])) + (f".post{found[3]}" if found[3] else "")


def shortfall(image: Image, need: Need) -> str | None:
    """Why an image does not meet a need; None where it does.

    An image whose version nobody states falls short as long as the recipe says it may float:
    then the caller warns instead of refusing.
    """
    tag = tag_of(image.reference)
    if need.version:
        has, wants = release(version_of(image)), release(need.version)
        if has is None:
            return f"{image.reference} states no version; {need.version} is needed: {need.because}"
        if wants is not None and has < wants:
            return (
                f"{image.reference} is {version_of(image)}; {need.version} is needed: "
                f"{need.because}"
            )
    if need.build:
        date = build_date(tag)
        if not date:
            return f"{image.reference} states no date; {need.build} is needed: {need.because}"
        if date < need.build:
            return f"{image.reference} is of {date}; {need.build} is needed: {need.because}"
    return None
