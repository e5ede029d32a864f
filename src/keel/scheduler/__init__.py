"""Request life cycle: admission, batching, the loop."""

from __future__ import annotations
