"""The rules of `slipway deploy check`: what a Compose file can get wrong about its engines."""

from __future__ import annotations

from slipway.deploy.check import Rule
from slipway.deploy.compose import ComposeService
from slipway.deploy.engine import engine_of
from slipway.deploy.rules import claims, flags, gpus, host, images, mounts, pairs, ports

RULES: tuple[Rule, ...] = (
    *flags.RULES,
    *gpus.RULES,
    *ports.RULES,
    *pairs.RULES,
    *mounts.RULES,
    *images.RULES,
    *host.RULES,
    *claims.RULES,
)


def listening_port(service: ComposeService) -> int | None:
    """The port that an engine listens on; None where the service is no engine."""
    command = engine_of(service.words, service.environment)
    return command.port if command else None


__all__ = ["RULES", "listening_port"]
