"""The OpenAI HTTP API and the processes behind it."""

from __future__ import annotations
