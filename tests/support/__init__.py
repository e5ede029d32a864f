"""What several test files share."""

from __future__ import annotations
