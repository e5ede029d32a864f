"""Attention over the KV pool: backends behind one interface."""

from __future__ import annotations
