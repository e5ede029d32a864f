"""`keel bench`: load on a server or on the engine alone, and what users of it would have felt."""

from __future__ import annotations
