"""Judges Compose files before anyone starts them: each rule finds one kind of mistake."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from slipway.deploy.compose import ComposeFile, read_compose
from slipway.deploy.document import read_text
from slipway.deploy.settings import read_env

if TYPE_CHECKING:
    from slipway.deploy.scene import Scene, Seen


class Severity(StrEnum):
    """An error cannot work and is refused; a warning is unwise and let through."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True)
class Found:
    """What a rule has to say about one place.

    Attributes:
        service: the service's name, or "" for the whole file.
        path: the file; None where the scene has only one.
        against: the other file, where two files contradict each other.
        line: 0 for the service's own.
    """

    service: str
    reason: str
    fix: str
    path: Path | None = None
    against: Path | None = None
    line: int = 0


def at(seen: Seen, reason: str, fix: str, other: Seen | None = None) -> Found:
    """A finding about a service, and the one that it clashes with."""
    against = other.file.path if other and other.file.path != seen.file.path else None
    return Found(seen.name, reason, fix, seen.file.path, against)


@dataclass(frozen=True)
class Rule:
    """One kind of mistake.

    Attributes:
        name: stable; people and scripts refer to it.
        about: one line for the list of rules.
        source: where the knowledge comes from.
        find: yields the mistake's places in a scene; never raises.
        together: whether files that are started together can make the mistake with each other.
    """

    name: str
    severity: Severity
    about: str
    source: str
    find: Callable[[Scene], Iterable[Found]]
    together: bool = False


@dataclass(frozen=True)
class Finding:
    """A mistake in a file, with the rule that found it."""

    rule: str
    severity: Severity
    path: Path
    line: int
    service: str
    reason: str
    fix: str
    source: str = ""

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}" if self.line else str(self.path)
        service = f"{self.service}: " if self.service else ""
        return (
            f"{self.severity.value}: {place}: {service}{self.reason} [{self.rule}]"
            f"\n  fix: {self.fix}"
        )

    def to_json(self) -> dict[str, object]:
        """The members as JSON has them."""
        return {**asdict(self), "severity": self.severity.value, "path": str(self.path)}


def read_files(paths: Iterable[Path], settings: Mapping[str, str]) -> list[ComposeFile]:
    """Compose files with what is set for their variables: here, else in the `.env` beside them.

    Raises:
        ConfigError: naming the file that is none.
    """
    files = []
    for path in dict.fromkeys(paths):
        beside = path.parent / ".env"
        values = read_env(read_text(beside)) if beside.is_file() else {}
        files.append(read_compose(path, {**values, **settings}, unknown=True))
    return files


def check(file: ComposeFile, rules: Sequence[Rule] | None = None) -> list[Finding]:
    """All findings of all rules about one file, errors first, in the order of the file."""
    return check_files([file], rules)


def check_files(
    files: Sequence[ComposeFile],
    rules: Sequence[Rule] | None = None,
    *,
    host_gpus: int | None = None,
    together: bool = False,
) -> list[Finding]:
    """All findings about files: each by itself, then those that are named as one set.

    Args:
        files: what to judge.
        rules: by default all.
        host_gpus: how many GPUs the host has; by default what a `site.toml` beside a file says.
        together: all files are one set, whatever their names.

    Returns:
        Errors before warnings, otherwise in the order of the files and within them.
    """
    from slipway.deploy.scene import Scene
    from slipway.deploy.sets import gpus_of_host, least_gpus, named_sets

    if rules is None:
        from slipway.deploy.rules import RULES

        rules = RULES
    known = {file.path.name: file for file in files}
    gpus = gpus_of_host(files, host_gpus)
    least = least_gpus(files)
    findings: list[Finding] = []
    for file in files:
        scene = Scene((file,), gpus[file.path], least, known)
        findings += _judge(scene, rules, alone=True)
    for group in [tuple(files)] if together and len(files) > 1 else named_sets(files):
        scene = Scene(group, gpus[group[0].path], least, known)
        findings += _judge(scene, [rule for rule in rules if rule.together], alone=False)
    order = {file.path: index for index, file in enumerate(files)}
    unique = dict.fromkeys(findings)
    return sorted(
        unique,
        key=lambda each: (each.severity is not Severity.ERROR, order[each.path], each.line),
    )


def _judge(scene: Scene, rules: Iterable[Rule], *, alone: bool) -> Iterator[Finding]:
    """Findings of one scene; of several files only what is between two of them."""
    lines = {
        (file.path, service.name): service.line for file in scene.files for service in file.services
    }
    for rule in rules:
        for found in rule.find(scene):
            path = found.path or scene.files[0].path
            if not alone and (found.against is None or found.against == path):
                continue
            reason = found.reason
            if found.against is not None and found.against.name not in reason:
                reason = f"with {found.against.name}: {reason}"
            yield Finding(
                rule.name,
                rule.severity,
                path,
                found.line or lines.get((path, found.service), 0),
                found.service,
                reason,
                found.fix,
                rule.source,
            )


def errors(findings: Iterable[Finding]) -> list[Finding]:
    """Those that forbid to start."""
    return [finding for finding in findings if finding.severity is Severity.ERROR]
