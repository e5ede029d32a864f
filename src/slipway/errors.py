"""Every failure a person can meet: what happened, what to do about it, and an exit code each.

A command that raises a `SlipwayError` prints `error: <what>` and, where there is one,
`fix: <remedy>` on stderr, without a traceback, and exits with the class's code. Codes are stable:
scripts test them.
"""

from __future__ import annotations

from typing import ClassVar


class SlipwayError(Exception):
    """Base of all failures meant for people.

    Args:
        what: one sentence: what happened, with the value that was wrong.
        remedy: one sentence: what to do; a command where one exists.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy


class UsageError(SlipwayError):
    """Flags or arguments that cannot be meant."""

    exit_code = 2


class ConfigError(SlipwayError):
    """A data file of the repository (matrix, site, topology, recipe) is wrong."""

    exit_code = 3


class RepositoryError(SlipwayError):
    """The git checkout cannot be read as the build needs it."""

    exit_code = 4


class LockError(SlipwayError):
    """A lock file is missing, unhashed, or does not satisfy `pyproject.toml`."""

    exit_code = 5


class NetworkError(SlipwayError):
    """An index, a mirror or a registry could not be reached."""

    exit_code = 6


class BaseError(SlipwayError):
    """No base image could be had for the variant."""

    exit_code = 7


class StorageError(SlipwayError):
    """The local disk refused: full, read-only, or a store that is damaged."""

    exit_code = 8


class IntegrityError(SlipwayError):
    """Bytes are not what their digest, size or signature says."""

    exit_code = 9


class RegistryError(SlipwayError):
    """A registry answered, and the answer is a refusal."""

    exit_code = 10


class DeploymentError(SlipwayError):
    """A deployment is refused, or did not come up."""

    exit_code = 11


class ToolMissingError(SlipwayError):
    """A program that this command needs is not installed or not running."""

    exit_code = 12


class TagTakenError(SlipwayError):
    """An immutable tag already names another digest."""

    exit_code = 13


class RunnerError(SlipwayError):
    """A CI runner lacks what its workflow needs."""

    exit_code = 14
