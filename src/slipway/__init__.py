"""slipway: the release tool around the engine's images and deployments."""

from __future__ import annotations
