"""The cookbook: recipes as data, one generator of commands, and the site that shows them."""

from __future__ import annotations
