"""Flags of the engine and their validation; imported by `slipway` too, so nothing slow in here."""

from __future__ import annotations

from keel.args.server import ServerArgs, parse, validate
from keel.args.table import Flag, flags_of
from keel.errors import ArgumentError

FLAGS = flags_of(ServerArgs)

__all__ = ["FLAGS", "ArgumentError", "Flag", "ServerArgs", "flags_of", "parse", "validate"]
