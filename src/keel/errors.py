"""Failures of the engine that a person can meet: one sentence, a remedy, an exit code each."""

from __future__ import annotations

from typing import ClassVar


class KeelError(Exception):
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


class ArgumentError(KeelError):
    """Flags that cannot be meant, alone or together."""

    exit_code = 2


class ModelError(KeelError):
    """A checkpoint is missing, damaged, or of an architecture that the engine does not know."""

    exit_code = 3


class AddressInUseError(KeelError):
    """The address to listen on is taken or not ours."""

    exit_code = 4


class EngineDiedError(KeelError):
    """The scheduler process ended while it was needed."""

    exit_code = 5


class FetchError(KeelError):
    """A model could not be fetched."""

    exit_code = 6


class BenchError(KeelError):
    """Nothing could be measured: there is no server, or it answered no request."""

    exit_code = 7
