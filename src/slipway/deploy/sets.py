"""Which files of a folder are started together, as far as their names and contents say."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from slipway.deploy.compose import ComposeFile
from slipway.deploy.scene import Scene

_ROLES = {"p": "prefill", "prefill": "prefill", "d": "decode", "decode": "decode"}
# `f4`: the first four GPUs of the host; `b4`: the last four; `g45`: GPUs 4 and 5.
SLOT = re.compile(r"([fbg])(\d{1,8})")


def words_of(name: str) -> tuple[str, ...]:
    """The words of a file's name: `dockerserve-pd2-p-r1.yml` is `pd2`, `p`, `r1`."""
    stem = re.sub(r"\.ya?ml$", "", name)
    words = [word for word in re.split(r"[-_.]", stem) if word]
    return tuple(word for word in words if word not in ("dockerserve", "docker", "compose"))


def named_sets(files: Sequence[ComposeFile]) -> list[tuple[ComposeFile, ...]]:
    """Files of one folder whose names make them one deployment.

    A prefill file goes with the decode file of the same name but for the role; where there is none,
    with the one whose remaining words it has all. Files that differ only in their slot share the
    host.
    """
    sets: list[tuple[ComposeFile, ...]] = []
    folders: dict[Path, list[ComposeFile]] = defaultdict(list)
    for file in files:
        folders[file.path.parent].append(file)
    for folder in folders.values():
        sets += _by_role(folder)
        sets += _by_slot(folder)
    return list({tuple(file.path for file in group): group for group in sets}.values())


def _by_role(files: Sequence[ComposeFile]) -> list[tuple[ComposeFile, ...]]:
    sides: dict[str, list[tuple[frozenset[str], ComposeFile]]] = {"prefill": [], "decode": []}
    for file in files:
        words = words_of(file.path.name)
        roles = {launch.role for _, launch in Scene((file,)).engines()} - {""}
        named = [word for word in words if word in _ROLES and _ROLES[word] in roles]
        if len(roles) == 1 and named:
            rest = frozenset(words) - set(named)
            sides[roles.pop()].append((rest, file))
    pairs: list[tuple[ComposeFile, ...]] = []
    for here, there in (("prefill", "decode"), ("decode", "prefill")):
        for rest, file in sides[here]:
            exact = [other for words, other in sides[there] if words == rest]
            near = [(len(words), other) for words, other in sides[there] if words < rest and words]
            partner = (
                exact[0] if exact else max(near, key=lambda each: each[0])[1] if near else None
            )
            if partner is not None:
                pair = (file, partner) if here == "prefill" else (partner, file)
                pairs.append(pair)
    return pairs


def _by_slot(files: Sequence[ComposeFile]) -> list[tuple[ComposeFile, ...]]:
    groups: dict[tuple[str, ...], dict[str, ComposeFile]] = defaultdict(dict)
    for file in files:
        words = words_of(file.path.name)
        slots = [word for word in words if SLOT.fullmatch(word)]
        rest = tuple(word for word in words if word not in slots)
        groups[rest].setdefault("".join(slots), file)
    return [tuple(group.values()) for group in groups.values() if len(group) > 1]


def gpus_of_host(files: Sequence[ComposeFile], given: int | None) -> dict[Path, int | None]:
    """How many GPUs the host of each file has.

    What was given, else what the `site.toml` beside the file says, else None: not known.
    """
    if given is not None:
        return {file.path: given for file in files}
    folders = {file.path.parent: _site_gpus(file.path.parent) for file in files}
    return {file.path: folders[file.path.parent] for file in files}


def _site_gpus(folder: Path) -> int | None:
    import tomllib

    try:
        host = tomllib.loads((folder / "site.toml").read_text(encoding="utf-8")).get("host", {})
    except (OSError, ValueError):
        return None
    gpus = host.get("gpus") if isinstance(host, dict) else None
    return gpus if isinstance(gpus, int) and not isinstance(gpus, bool) else None


def least_gpus(files: Sequence[ComposeFile]) -> int:
    """The fewest GPUs that a host must have for what the files name."""
    named = [gpu for seen in Scene(tuple(files)).services for gpu in seen.gpus]
    return max(named, default=-1) + 1
