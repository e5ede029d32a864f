"""Judges a Compose file before anyone starts it: each rule finds one kind of mistake."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from slipway.deploy.compose import ComposeFile


class Severity(StrEnum):
    """An error cannot work and is refused; a warning is unwise and let through."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True)
class Found:
    """What a rule has to say about one place: the service's name, or "" for the whole file."""

    service: str
    reason: str
    fix: str


@dataclass(frozen=True)
class Rule:
    """One kind of mistake.

    Attributes:
        name: stable; people and scripts refer to it.
        about: one line for the list of rules.
        source: where the knowledge comes from.
        find: yields the mistake's places in a file; never raises.
    """

    name: str
    severity: Severity
    about: str
    source: str
    find: Callable[[ComposeFile], Iterable[Found]]


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


def check(file: ComposeFile, rules: Sequence[Rule] | None = None) -> list[Finding]:
    """All findings of all rules, errors first, in the order of the file."""
    if rules is None:
        from slipway.deploy.rules import RULES

        rules = RULES
    lines = {service.name: service.line for service in file.services}
    findings = [
        Finding(
            rule.name,
            rule.severity,
            file.path,
            lines.get(found.service, 0),
            found.service,
            found.reason,
            found.fix,
        )
        for rule in rules
        for found in rule.find(file)
    ]
    return sorted(findings, key=lambda each: (each.severity is not Severity.ERROR, each.line))


def errors(findings: Iterable[Finding]) -> list[Finding]:
    """Those that forbid to start."""
    return [finding for finding in findings if finding.severity is Severity.ERROR]
