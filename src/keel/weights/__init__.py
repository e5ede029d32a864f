"""Checkpoints: where they come from, and their tensors under one set of names."""

from __future__ import annotations
