"""Model definitions over layers and attention, found by architecture."""

from __future__ import annotations
