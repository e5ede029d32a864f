"""How an image is made: matrix, dependency gate, plan, tags, builders."""

from __future__ import annotations
