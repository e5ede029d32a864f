"""What was seen of each request, and the figures that follow from many."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Record:
    """One request as its client saw it; times are seconds of one clock.

    Args:
        sent: when the request was written to an open connection.
        stamps: when pieces of the answer came; a piece is one token or several.
        prompt_tokens, output_tokens: as the server counted them, or, where it does not, 0 and the
            number of pieces.
        cached_tokens: prompt tokens from a prefix cache, where the server says so.
        error: why there is no whole answer; empty when there is one.
    """

    sent: float
    stamps: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    error: str = ""

    @property
    def ttft(self) -> float:
        """Time to first token, seconds."""
        return self.stamps[0] - self.sent

    @property
    def latency(self) -> float:
        """Until the last token, seconds."""
        return self.stamps[-1] - self.sent

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first, seconds; None with fewer than two."""
        if self.output_tokens < 2:
            return None
        return (self.stamps[-1] - self.stamps[0]) / (self.output_tokens - 1)

    @property
    def gaps(self) -> list[float]:
        """Inter-token latencies: between one piece and the next, seconds."""
        return [b - a for a, b in zip(self.stamps, self.stamps[1:], strict=False)]


@dataclass(frozen=True)
class Spread:
    """A distribution in milliseconds."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


@dataclass(frozen=True)
class Figures:
    """One run.

    Args:
        duration_s: from the first request's sending to the last token.
        cache_hit_rate: prompt tokens from the cache, of all; 0 where the server does not tell.
    """

    completed: int
    failed: int
    duration_s: float
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cache_hit_rate: float
    requests_per_s: float
    input_tokens_per_s: float
    output_tokens_per_s: float
    ttft_ms: Spread
    tpot_ms: Spread
    itl_ms: Spread
    e2e_ms: Spread


def percentile(ordered: Sequence[float], share: float) -> float:
    """Linear between the two nearest of sorted values; 0 of none."""
    if not ordered:
        return 0.0
    at = share * (len(ordered) - 1)
    low, high = math.floor(at), math.ceil(at)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def spread(seconds: Sequence[float]) -> Spread:
    """Of values in seconds."""
    ordered = sorted(1000 * one for one in seconds)
    mean = statistics.fmean(ordered) if ordered else 0.0
    shares = (percentile(ordered, share) for share in (0.5, 0.9, 0.95, 0.99, 1.0))
    return Spread(mean, *shares)


def figures(records: Sequence[Record]) -> Figures:
    """Of one run. Failed requests count as failed and in nothing else."""
    done = [one for one in records if not one.error]
    sent = [one.sent for one in records]
    last = max((one.stamps[-1] for one in done), default=0.0)
    seconds = max(last - min(sent), 1e-9) if done else 0.0
    inputs, outputs = sum(r.prompt_tokens for r in done), sum(r.output_tokens for r in done)
    cached = sum(r.cached_tokens for r in done)

    def rate(count: int) -> float:
        return count / seconds if seconds else 0.0

    return Figures(
        completed=len(done),
        failed=len(records) - len(done),
        duration_s=seconds,
        input_tokens=inputs,
        output_tokens=outputs,
        cached_tokens=cached,
        cache_hit_rate=cached / inputs if inputs else 0.0,
        requests_per_s=rate(len(done)),
        input_tokens_per_s=rate(inputs),
        output_tokens_per_s=rate(outputs),
        ttft_ms=spread([r.ttft for r in done]),
        tpot_ms=spread([t for r in done if (t := r.tpot) is not None]),
        itl_ms=spread([gap for r in done for gap in r.gaps]),
        e2e_ms=spread([r.latency for r in done]),
    )
