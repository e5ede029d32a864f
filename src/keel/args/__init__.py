"""Flags of the engine and their validation; imported by `slipway` too, so nothing slow in here."""

from __future__ import annotations
