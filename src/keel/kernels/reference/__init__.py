"""What each kernel must compute, in float64 and in plain loops: written to be read."""

from __future__ import annotations
