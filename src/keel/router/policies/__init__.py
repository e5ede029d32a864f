"""How a worker is chosen among those that could serve a request."""

from __future__ import annotations

from keel.router.policies.base import Ask, Policy
from keel.router.policies.build import PolicyConfig, make_policy

__all__ = ["Ask", "Policy", "PolicyConfig", "make_policy"]
