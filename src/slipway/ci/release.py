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
from slipway.image.registry import Registry, push_index

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
    """The indexes of one version, a row of the matrix each, and an SBOM of each image as a file."""

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
    """Build and push the whole matrix, and write the images' SBOMs into `folder`.

    A row's images lie under `vX.Y.Z[-row]-<architecture>`, and `vX.Y.Z[-row]` is an index of them:
    one name, of which each machine pulls its own.

    Raises:
        TagTakenError: the version was released from other sources.
    """
    matrix = matrices.load(checkout.root)
    repository = Registry(target.registry).repository(target.repository)
    folder.mkdir(parents=True, exist_ok=True)
    results, sboms = [], []
    for row, variants in matrix.rows.items():
        if not variants[0].ci:
            continue
        name = f"{tag}{suffix_of(matrix, row)}"
        built = [
            run.build(
                checkout.root,
                variant.name,
                None,
                cache,
                tag=f"{name}-{variant.platform.architecture}",
                target=target,
                push=True,
                say=say,
            )
            for variant in variants
        ]
        index = push_index((one.image for one in built), repository, name)
        plan = built[0].plan
        results.append(Result(row, plan.commit, plan.path, plan.why, name, index.digest))
        for one in built:
            path = folder / f"{matrix.engine.name}-{one.tag}.cdx.json"
            path.write_text(json.dumps(sbom(one.image), indent=1) + "\n")
            sboms.append(path)
    return Release(tuple(results), tuple(sboms))
