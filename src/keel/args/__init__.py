"""Flags of the engine and their validation; imported by `slipway` too, so nothing slow in here."""

from __future__ import annotations

from keel.args.server import ServerArgs, parse, validate
from keel.args.table import Flag, flags_of

FLAGS = flags_of(ServerArgs)

__all__ = ["FLAGS", "Flag", "ServerArgs", "flags_of", "parse", "validate"]
