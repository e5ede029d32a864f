"""From topology to something an operator can start: render, check, pack."""

from __future__ import annotations
