"""The version of what is being built, computed once from git and stamped into the image."""

from __future__ import annotations

import re
from dataclasses import dataclass

from slipway.build.git import Checkout
from slipway.errors import RepositoryError

FALLBACK = "0.1.0"


@dataclass(frozen=True)
class Version:
    """A PEP 440 version; `guess` says why it is a guess, and is "" where it is none."""

    text: str
    guess: str = ""


def describe(checkout: Checkout, *, dirty: bool) -> Version:
    """The version of HEAD.

    On a tag `v1.2.3` it is `1.2.3`, after it `1.2.4.dev<commits>+g<sha9>`. Where no version tag is
    in reach (none was made, or a shallow clone left it behind) it is `0.1.0.dev0+g<sha9>` and a
    guess: one that is the same in a shallow clone and in a whole one.
    """
    sha = checkout.commit()[:9]
    local = ".dirty" if dirty else ""
    try:
        found = checkout.text(
            "describe", "--tags", "--long", "--abbrev=9", "--match", "v[0-9]*", "HEAD"
        )
    except RepositoryError:
        shallow = checkout.text("rev-parse", "--is-shallow-repository") == "true"
        reason = (
            "the clone is shallow and holds no version tag (git fetch --unshallow --tags)"
            if shallow
            else "no version tag v<number> was made yet"
        )
        return Version(f"{FALLBACK}.dev0+g{sha}{local}", reason)
    tag, distance, _ = found.rsplit("-", 2)
    match = re.fullmatch(r"v(\d+(?:\.\d+)*)((?:a|b|rc)\d+)?", tag)
    if match is None:
        return Version(f"{FALLBACK}.dev0+g{sha}{local}", f"tag {tag} is not a version")
    release, pre = match[1], match[2] or ""
    if distance == "0":
        return Version(f"{release}{pre}{'+dirty' if dirty else ''}")
    if pre:
        stem, number = re.split(r"(?<=[abc])(?=\d)", pre)
        upcoming = f"{release}{stem}{int(number) + 1}"
    else:
        head, _, last = release.rpartition(".")
        upcoming = f"{head}{'.' if head else ''}{int(last) + 1}"
    return Version(f"{upcoming}.dev{distance}+g{sha}{local}")
