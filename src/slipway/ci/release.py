"""A release of a version tag: its notes, the images of the whole matrix, and their SBOMs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from slipway.build import matrix as matrices
from slipway.build import run
from slipway.build.attest import sbom
from slipway.build.git import Checkout
from slipway.ci.plan import suffix_of
from slipway.ci.results import Result
from slipway.errors import ConfigError, UsageError
from slipway.image.reference import Reference

_VERSION = re.compile(r"v\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]+)?")


def check_version(tag: str) -> str:
    """`vX.Y.Z[-pre]`.

    Raises:
        UsageError: it is another name.
    """
    if not _VERSION.fullmatch(tag):
        raise UsageError(f"{tag!r} is no version tag", "name it like v1.2.0")
    return tag


def changelog_section(text: str, tag: str) -> str:
    """What `CHANGELOG.md` says of a version (`## 1.2.0`, with or without v and a date).

    Raises:
        ConfigError: it says nothing: a release without a word to its users is a mistake.
    """
    version = re.escape(tag.removeprefix("v"))
    head = re.compile(rf"^## \[?v?{version}\]?(?:[ \t].*)?$", re.MULTILINE)
    if (found := head.search(text)) is None:
        raise ConfigError(
            f"CHANGELOG.md has no section for {tag}", f"head one with: ## {tag.removeprefix('v')}"
        )
    rest = text[found.end() :]
    end = re.search(r"^## ", rest, re.MULTILINE)
    return rest[: end.start() if end else len(rest)].strip()


@dataclass(frozen=True)
class Release:
    """Images of one version, and the SBOM of each as a file."""

    images: tuple[Result, ...]
    sboms: tuple[Path, ...]


def build(
    checkout: Checkout,
    tag: str,
    cache: Path,
    target: Reference,
    folder: Path,
    *,
    say: Callable[[str], None],
) -> Release:
    """Build and push every variant under `vX.Y.Z[-variant]`, and write their SBOMs into `folder`.

    Raises:
        TagTakenError: the version was released from other sources.
    """
    matrix = matrices.load(checkout.root)
    folder.mkdir(parents=True, exist_ok=True)
    images, sboms = [], []
    for name in matrix.variants:
        built = run.build(
            checkout.root,
            name,
            None,
            cache,
            tag=f"{tag}{suffix_of(matrix, name)}",
            target=target,
            push=True,
            say=say,
        )
        plan = built.plan
        facts = (name, plan.commit, plan.path, plan.why, built.tag, built.image.digest)
        images.append(Result(*facts))
        path = folder / f"{matrix.engine.name}-{built.tag}.cdx.json"
        path.write_text(json.dumps(sbom(built.image), indent=1) + "\n")
        sboms.append(path)
    return Release(tuple(images), tuple(sboms))
