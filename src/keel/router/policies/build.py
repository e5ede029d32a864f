"""From a policy's name to the policy."""

from __future__ import annotations

from dataclasses import dataclass

from keel.router.policies.base import Policy
from keel.router.policies.cache_aware import CacheAware
from keel.router.policies.simple import (
    ConsistentHashing,
    LeastLoad,
    PowerOfTwo,
    Random,
    RoundRobin,
)


@dataclass(frozen=True)
class PolicyConfig:
    """What policies can be told; see `CacheAware`."""

    cache_threshold: float = 0.3
    balance_absolute: int = 64
    balance_relative: float = 1.5
    tree_bytes: int = 2**26


_SIMPLE: dict[str, type[Policy]] = {
    policy.name: policy for policy in (RoundRobin, Random, PowerOfTwo, LeastLoad, ConsistentHashing)
}


def make_policy(name: str, config: PolicyConfig) -> Policy:
    """A fresh policy; `name` is one of `keel.args.router.POLICIES`."""
    if name == CacheAware.name:
        return CacheAware(
            config.cache_threshold,
            config.balance_absolute,
            config.balance_relative,
            config.tree_bytes,
        )
    return _SIMPLE[name]()
