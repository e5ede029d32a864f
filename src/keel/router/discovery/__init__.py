"""Where workers are found: a file, DNS, the Docker Engine."""

from __future__ import annotations
