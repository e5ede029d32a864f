"""Which flags and variables an upstream release knows, from the committed lists."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from slipway.cookbook.recipe import Image
from slipway.cookbook.versions import build_date, release, tag_of, version_of
from slipway.errors import ConfigError

FOLDER = Path("docs/cookbook/upstream")
# Variables with these beginnings are upstream's own; all others belong to libraries.
OWN_VARIABLES = ("SGLANG_",)


@dataclass(frozen=True)
class Known:
    """What one release knows.

    Args:
        flags: whether each spelling takes a value.
        canonical: the first spelling of each.
        env: names of environment variables.
    """

    name: str
    version: str
    flags: dict[str, bool]
    canonical: dict[str, str]
    env: frozenset[str]


def load_known(root: Path) -> list[Known]:
    """The committed lists, oldest release first.

    Raises:
        ConfigError: there is none.
    """
    found = []
    for path in sorted((root / FOLDER).glob("*.toml")):
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        flags: dict[str, bool] = {}
        canonical: dict[str, str] = {}
        for name, (takes_value, *aliases) in data["flags"].items():
            for spelling in (name, *aliases):
                flags[spelling] = takes_value
                canonical[spelling] = name
        engine = path.stem.rpartition("-")[0]
        env = frozenset(data["env"]["names"])
        found.append(Known(engine, data["version"], flags, canonical, env))
    if not found:
        raise ConfigError(f"{root / FOLDER} has no lists", f"run python {FOLDER}/update.py")
    return sorted(found, key=lambda known: release(known.version) or (0, 0, 0, 0))


def lists_for(image: Image, engine: str, known: Sequence[Known]) -> list[Known]:
    """The lists of which one must know a flag of an image's engine.

    A release has one. A build dated after a release, and a tag without a version, may have what
    the next release has; for such a tag every list counts.

    Raises:
        ConfigError: the release has no list.
    """
    own = [one for one in known if one.name == engine]
    version = version_of(image)
    if not version:
        return own
    at = [number for number, one in enumerate(own) if one.version == version]
    if not at:
        raise ConfigError(
            f"no list of the flags of {engine} {version}, which {image.reference} carries",
            f"run python {FOLDER}/update.py {engine}=={version}",
        )
    reach = 2 if build_date(tag_of(image.reference)) else 1
    return own[at[0] : at[0] + reach]


def wrong_flag(flag: str, lists: Iterable[Known]) -> str | None:
    """Why a `--name value` entry is wrong for every one of the lists; None where one accepts it."""
    name, has_value, _ = flag.partition(" ")
    reasons = []
    for known in lists:
        takes_value = known.flags.get(name)
        if takes_value is None:
            near = get_close_matches(name, known.flags, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            reasons.append(f"{known.name} {known.version} has no flag {name}{hint}")
        elif takes_value and not has_value:
            reasons.append(f"{name} needs a value in {known.name} {known.version}")
        elif not takes_value and has_value:
            reasons.append(f"{name} takes no value in {known.name} {known.version}")
        else:
            return None
    return reasons[0] if reasons else None


def wrong_variable(entry: str, lists: Iterable[Known]) -> str | None:
    """Why a `NAME=value` entry is wrong; None where a list knows it or it is a library's."""
    name = entry.partition("=")[0]
    lists = list(lists)
    if not name.startswith(OWN_VARIABLES) or any(name in known.env for known in lists):
        return None
    near = get_close_matches(name, lists[0].env, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"{lists[0].name} {lists[0].version} has no variable {name}{hint}"


def twice(flags: Sequence[str], lists: Sequence[Known]) -> str | None:
    """A flag that a command gives twice, under whatever spelling; None where none is."""
    seen: set[str] = set()
    for flag in flags:
        name = flag.split(" ", 1)[0]
        name = next((one.canonical[name] for one in lists if name in one.canonical), name)
        if name in seen:
            return name
        seen.add(name)
    return None
