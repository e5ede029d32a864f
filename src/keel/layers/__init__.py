"""The parts that models are made of."""

from __future__ import annotations
