"""keel: the serving engine that Slipway's images carry."""

from __future__ import annotations
