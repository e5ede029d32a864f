"""Judges workflows by what Gitea Actions does not support or does differently (`gitea.toml`)."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from slipway.errors import ConfigError

_OUTPUTS = re.compile(r"needs\.([\w-]+)\.outputs")


@dataclass(frozen=True)
class Rule:
    """One difference and where it was read."""

    name: str
    where: tuple[str, ...]
    value: str
    level: Literal["error", "note"]
    says: str
    source: str

    def matches(self, path: str, value: str | None) -> bool:
        """Whether a key at `path` (joined by slashes) falls under it; None is a table or list."""
        if not any(_under(path, pattern) for pattern in self.where):
            return False
        if not self.value:
            return True
        return value is not None and re.search(self.value, value) is not None


@dataclass(frozen=True)
class Finding:
    """A rule that a place in a file breaks."""

    path: Path
    line: int
    rule: Rule

    def __str__(self) -> str:
        rule = self.rule
        place = f"{self.path}:{self.line}: {rule.level}: {rule.name}"
        return f"{place}: {rule.says} (source: {rule.source})"


SKIPPED_OUTPUTS = Rule(
    "skipped-outputs",
    (),
    "",
    "error",
    "reads outputs of a job that may be skipped, without asking for its result: act hands on the "
    "expression itself",
    "act 0.2.89, seen when summary ran after a skipped archive",
)


@cache
def rules() -> tuple[Rule, ...]:
    """The table of `gitea.toml`."""
    table = tomllib.loads(files("slipway.ci").joinpath("gitea.toml").read_text(encoding="utf-8"))
    return tuple(
        Rule(
            row["name"],
            tuple(row["where"]),
            row.get("value", ""),
            row["level"],
            row["says"],
            row["source"],
        )
        for row in table["rule"]
    )


def lint(paths: Iterable[Path]) -> list[Finding]:
    """Every finding in workflow files, in the order of the files.

    Raises:
        ConfigError: a file is no YAML, or no workflow.
    """
    return [finding for path in paths for finding in _lint(path)]


def _lint(path: Path) -> Iterator[Finding]:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        workflow = YAML(typ="rt").load(path.read_text())
    except YAMLError as error:
        raise ConfigError(f"{path} is no YAML: {str(error).splitlines()[0]}") from error
    if not isinstance(workflow, dict) or "jobs" not in workflow:
        raise ConfigError(f"{path} is no workflow: it has no jobs")
    for place, value, line in _walk(workflow, ""):
        for rule in rules():
            if rule.matches(place, value):
                yield Finding(path, line, rule)
        if value is not None and _reads_skipped(workflow["jobs"], place, value):
            yield Finding(path, line, SKIPPED_OUTPUTS)


def _reads_skipped(jobs: dict[str, Any], place: str, value: str) -> bool:
    """Whether a job that runs in any case reads what a job with a condition may not have given."""
    head, _, rest = place.partition("/")
    job = jobs.get(rest.partition("/")[0], {}) if head == "jobs" else {}
    if "always()" not in str(job.get("if", "")):
        return False
    return any(
        "if" in jobs.get(name, {}) and f"needs.{name}.result" not in value
        for name in _OUTPUTS.findall(value)
    )


def _walk(node: Any, place: str) -> Iterator[tuple[str, str | None, int]]:
    """All keys below a node: path, text of a scalar, line number from 1."""
    if not isinstance(node, dict | list):
        return
    position: Any = getattr(node, "lc")  # noqa: B009  where ruamel.yaml notes lines and columns
    if isinstance(node, dict):
        entries = [(str(key), value, position.key(key)[0]) for key, value in node.items()]
    else:
        entries = [(str(n), value, position.item(n)[0]) for n, value in enumerate(node)]
    for name, value, line in entries:
        path = f"{place}/{name}" if place else name
        yield path, None if isinstance(value, dict | list) else str(value), line + 1
        yield from _walk(value, path)


def _under(path: str, pattern: str) -> bool:
    """Whether a path matches; `*` is one key, and alone everything."""
    if pattern == "*":
        return True
    keys, wanted = path.split("/"), pattern.split("/")
    return len(keys) == len(wanted) and all(map(fnmatchcase, keys, wanted))


def actionlint(paths: Iterable[Path]) -> tuple[int, str] | None:
    """Exit code and report of `actionlint`, or None where it is not installed."""
    program = shutil.which("actionlint")
    if program is None:
        return None
    done = subprocess.run(
        [program, "-no-color", *map(str, paths)], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr
