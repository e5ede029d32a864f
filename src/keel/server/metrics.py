"""Prometheus metrics, under SGLang's names where those exist."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from keel.server.client import SchedulerClient

_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200)
_SHORT = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.5, 1, 2, 5)


class Metrics:
    """What a scrape shows: the scheduler's last word, and times as clients feel them."""

    def __init__(self, client: SchedulerClient, model: str) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._registry.register(_SchedulerCollector(client, model))

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            whole = Histogram(
                f"sglang:{name}", text, ["model_name"], registry=self._registry, buckets=buckets
            )
            return whole.labels(model_name=model)

        self.time_to_first_token = histogram(
            "time_to_first_token_seconds", "From request to first token.", _SECONDS
        )
        self.inter_token_latency = histogram(
            "inter_token_latency_seconds", "Between tokens of an answer.", _SHORT
        )
        self.e2e_latency = histogram(
            "e2e_request_latency_seconds", "From request to the last token.", _SECONDS
        )
        self.requests = Counter(
            "sglang:num_requests_total",
            "Requests answered.",
            ["model_name"],
            registry=self._registry,
        ).labels(model_name=model)

    def render(self) -> bytes:
        """The text format."""
        return generate_latest(self._registry)


class _SchedulerCollector(Collector):
    def __init__(self, client: SchedulerClient, model: str) -> None:
        self._client, self._model = client, model

    def collect(self) -> Iterable[Metric]:
        stats = self._client.stats
        pool = max(stats.pool_tokens, 1)
        hits = stats.prefix_hit_tokens_total / max(stats.prompt_tokens_total, 1)
        for name, text, value in (
            ("num_running_reqs", "Requests in the running batch.", stats.running),
            ("num_queue_reqs", "Requests that wait.", stats.waiting),
            ("num_used_tokens", "KV slots that running requests hold.", stats.used_tokens),
            (
                "token_usage",
                "Share of the KV pool that running requests hold.",
                stats.used_tokens / pool,
            ),
            ("cached_prefix_tokens", "KV slots kept for later requests.", stats.cached_tokens),
            ("max_total_num_tokens", "Size of the KV pool.", stats.pool_tokens),
            ("cache_hit_rate", "Share of prompt tokens found in the prefix cache.", hits),
            ("gen_throughput", "Generated tokens a second.", self._client.tokens_per_second),
        ):
            gauge = GaugeMetricFamily(f"sglang:{name}", text, labels=["model_name"])
            gauge.add_metric([self._model], value)
            yield gauge
        for name, text, count in (
            ("prompt_tokens", "Prompt tokens taken in.", stats.prompt_tokens_total),
            (
                "cached_tokens",
                "Prompt tokens from the prefix cache.",
                stats.prefix_hit_tokens_total,
            ),
            ("generation_tokens", "Tokens generated.", stats.generated_tokens_total),
            ("num_aborted_requests", "Requests ended early.", stats.aborted_total),
            (
                "num_retractions",
                "Requests that gave up memory and waited again.",
                stats.preempted_total,
            ),
        ):
            counter = CounterMetricFamily(f"sglang:{name}", text, labels=["model_name"])
            counter.add_metric([self._model], count)
            yield counter
