"""One front door for many engines, which never leaves work running that nobody waits for."""

from __future__ import annotations
