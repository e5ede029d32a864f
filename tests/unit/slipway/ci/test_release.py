"""Names and notes of a version."""

from __future__ import annotations

import pytest

from slipway.ci.release import changelog_section, check_version
from slipway.errors import ConfigError, UsageError

CHANGELOG = """# Changelog

## Unreleased
- later

## 1.2.0 (2026-12-01)
### Added
- a thing

## 1.1.0
- old
"""


def test_the_section_of_a_version_ends_at_the_next() -> None:
    assert changelog_section(CHANGELOG, "v1.2.0") == "### Added\n- a thing"
    assert changelog_section(CHANGELOG, "v1.1.0") == "- old"


def test_a_version_without_a_section_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no section for v1\.2\.1"):
        changelog_section(CHANGELOG, "v1.2.1")


@pytest.mark.parametrize("tag", ["v1.2", "1.2.0", "v1.2.0 ", "vNext", "v1.2.0-"])
def test_other_names_are_no_versions(tag: str) -> None:
    with pytest.raises(UsageError):
        check_version(tag)
