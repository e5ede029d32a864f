"""The image catalogue: what a registry has, tag by tag, as a page."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipway.build.plan import DEPENDENCY_KEY
from slipway.cookbook.reference import table
from slipway.deploy.archive import read as read_archive
from slipway.errors import SlipwayError
from slipway.image.descriptor import Descriptor
from slipway.image.registry import Repository

_MIB = 1 << 20
_PINNED = re.compile(r"@(sha256:[0-9a-f]{64})")


@dataclass(frozen=True)
class Entry:
    """One tag of a repository.

    Args:
        size: bytes of config and layers as they are stored.
        plan: `full` for the first image with its dependencies, `fast` for those after it; "" where
            the image does not say what its dependencies are.
        archives: names of the archives that pin its digest.
    """

    tag: str
    digest: str
    created: str
    commit: str
    variant: str
    size: int
    plan: str
    archives: tuple[str, ...]


def entries(repository: Repository, pinned: Mapping[str, tuple[str, ...]]) -> list[Entry]:
    """Every tag that names an image, newest first.

    Args:
        pinned: names of archives by the digest that they pin.

    Raises:
        SlipwayError: the registry cannot be reached, refuses, or answers with what is not asked.
    """
    found = []
    for tag in repository.tags():
        answer = repository.manifest(tag)
        if answer is None:
            continue  # removed since the list was made
        descriptor, data = answer
        manifest = json.loads(data)
        if "config" not in manifest or "layers" not in manifest:
            continue  # an index, or an artifact that is no image
        config = _config(repository, manifest["config"])
        labels = config.get("config", {}).get("Labels") or {}
        sizes = [manifest["config"]["size"], *(layer["size"] for layer in manifest["layers"])]
        entry = Entry(
            tag=tag,
            digest=descriptor.digest,
            created=str(config.get("created") or ""),
            commit=str(labels.get("org.opencontainers.image.revision", "")),
            variant=str(labels.get("org.slipway.variant", "")),
            size=sum(sizes),
            plan="",
            archives=pinned.get(descriptor.digest, ()),
        )
        found.append((entry, str(labels.get(DEPENDENCY_KEY, ""))))
    return _with_plans(found)


def _config(repository: Repository, row: Mapping[str, Any]) -> dict[str, Any]:
    blob = Descriptor(row["mediaType"], row["digest"], row["size"])
    with repository.open(blob) as stream:
        config: dict[str, Any] = json.load(stream)
    return config


def _with_plans(found: Iterable[tuple[Entry, str]]) -> list[Entry]:
    ordered = sorted(found, key=lambda pair: (pair[0].created, pair[0].tag))
    first: dict[str, str] = {}
    rows = []
    for entry, key in ordered:
        plan = ""
        if key:
            plan = "full" if first.setdefault(key, entry.digest) == entry.digest else "fast"
        rows.append(Entry(**{**vars(entry), "plan": plan}))
    return rows[::-1]


def pinned_by(folder: Path) -> dict[str, tuple[str, ...]]:
    """Names of the archives of a folder, by every digest that their Compose files pin."""
    found: dict[str, set[str]] = {}
    for path in sorted(folder.glob("*.tar.zst")):
        try:
            _, files = read_archive(path)
        except SlipwayError:
            continue  # no archive of ours
        for name, content in files.items():
            if name.endswith((".yml", ".yaml")):
                for digest in _PINNED.findall(content.decode(errors="replace")):
                    found.setdefault(digest, set()).add(path.name.removesuffix(".tar.zst"))
    return {digest: tuple(sorted(names)) for digest, names in found.items()}


def page(where: str, rows: Iterable[Entry], now: datetime.datetime) -> str:
    """The catalogue as Markdown.

    Args:
        where: registry and repository, as the reader writes them before the tag.
        now: the time from which ages are counted, with a zone.
    """
    head = ["Tag", "Commit", "Age", "Variant", "Size", "Plan", "Digest", "Archives"]
    cells = [
        [
            f"`{row.tag}`",
            f"`{row.commit[:9]}`" if row.commit else "",
            age(row.created, now),
            row.variant,
            f"{row.size / _MIB:,.1f} MiB",
            row.plan,
            f"`{row.digest[:19]}`",
            ", ".join(f"`{name}`" for name in row.archives),
        ]
        for row in rows
    ]
    return (
        "\n\n".join(
            [
                "# Images",
                f"Taken from `{where}` on {now:%Y-%m-%d %H:%M} UTC. Ages count from the commit: an "
                "image's time is its commit's. The plan is full for the first image with its "
                "dependencies here, fast for those built on top of the same ones.",
                table(head, cells) if cells else "The repository has no image yet.",
            ]
        )
        + "\n"
    )


def age(created: str, now: datetime.datetime) -> str:
    """A time as minutes, hours or days before now; "" where it is none."""
    try:
        then = datetime.datetime.fromisoformat(created)
    except ValueError:
        return ""
    if then.tzinfo is None:
        then = then.replace(tzinfo=datetime.UTC)
    minutes = max(0, int((now - then).total_seconds() // 60))
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h" if minutes < 48 * 60 else f"{minutes // 1440} days"
