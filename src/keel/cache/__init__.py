"""Where keys and values lie: pool, allocator, prefix cache."""

from __future__ import annotations
