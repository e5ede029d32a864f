"""The flags of `keel router`: SGLang's router's names where it has them, and their validation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from keel.args.router_refused import refuse
from keel.args.router_values import (
    POLICIES,
    bucket_of,
    check_sampling,
    flat,
    header,
    path,
    policy_of,
    prefill_of,
    ratio,
    sampling,
    seconds,
    worker_url,
)
from keel.args.table import flag, parse_table, share, whole
from keel.errors import ArgumentError


@dataclass(frozen=True)
class RouterArgs:
    """What a router was asked to do. Every field does something; `None` means: decide."""

    host: str = flag("--host", part="server", default="127.0.0.1", help="The address to listen on.")
    port: int = flag(
        "--port",
        part="server",
        default=30000,
        convert=whole(0, 65535),
        help="The port to listen on; 0 takes a free one and logs it.",
    )
    workers: int = flag(
        "--workers",
        part="server",
        default=1,
        convert=whole(1, 64),
        help="Router processes that share the port; one core each.",
    )
    max_payload_size: int = flag(
        "--max-payload-size",
        part="server",
        default=512 * 2**20,
        convert=whole(1),
        help="The largest request body in bytes; a larger one is answered 413.",
    )
    api_key: str | None = flag(
        "--api-key",
        part="server",
        default=None,
        help="Sent to workers as a bearer token where the client brought no authorization.",
    )
    admin_api_key: str | None = flag(
        "--admin-api-key",
        part="server",
        default=None,
        help="What changes of the worker list must carry; without it only loopback may.",
    )
    forward_headers: tuple[tuple[str, ...], ...] = flag(
        "--forward-headers",
        part="server",
        default=(),
        convert=header,
        many=True,
        help="Request headers that reach workers besides the standard ones.",
    )
    request_id_headers: tuple[tuple[str, ...], ...] = flag(
        "--request-id-headers",
        part="server",
        default=(("x-request-id", "x-correlation-id", "x-trace-id", "request-id"),),
        convert=header,
        many=True,
        help="Request headers that may bring the id of a request, the first found counts.",
    )
    worker_urls_given: tuple[tuple[str, ...], ...] = flag(
        "--worker-urls",
        part="workers",
        default=(),
        convert=worker_url,
        many=True,
        help="URLs of workers.",
    )
    worker_file: str | None = flag(
        "--worker-file",
        part="workers",
        default=None,
        help="A JSON list of workers; read again when it changes and on SIGHUP.",
    )
    discover_dns: str | None = flag(
        "--discover-dns",
        part="workers",
        default=None,
        help="HOST:PORT; every address of HOST is a worker.",
    )
    discover_docker: str | None = flag(
        "--discover-docker",
        part="workers",
        default=None,
        help="LABEL[=VALUE]; every running container with it is a worker.",
    )
    docker_socket: str = flag(
        "--docker-socket",
        part="workers",
        default="/var/run/docker.sock",
        help="The socket of the Docker Engine that --discover-docker asks.",
    )
    discovery_interval_secs: float = flag(
        "--discovery-interval-secs",
        part="workers",
        default=5.0,
        convert=seconds(0.05),
        help="Time between looks at the worker file, DNS or Docker.",
    )
    http2_workers: tuple[tuple[str, ...], ...] = flag(
        "--http2-workers",
        part="workers",
        default=(),
        convert=worker_url,
        many=True,
        help="Workers spoken to in HTTP/2 without TLS, whatever their /server_info says.",
    )
    pd_disaggregation: bool = flag(
        "--pd-disaggregation",
        part="prefill and decode",
        default=False,
        switch=True,
        help="Send each request to a prefill and a decode worker.",
    )
    prefill: tuple[tuple[str, ...], ...] = flag(
        "--prefill",
        part="prefill and decode",
        default=(),
        many=True,
        help="URL and optional bootstrap port (or none) of a prefill worker.",
    )
    decode: tuple[tuple[str, ...], ...] = flag(
        "--decode",
        part="prefill and decode",
        default=(),
        convert=worker_url,
        many=True,
        help="URL of a decode worker.",
    )
    policy: str = flag(
        "--policy",
        part="policy",
        default="cache_aware",
        choices=POLICIES,
        help="How a worker is chosen.",
    )
    prefill_policy: str | None = flag(
        "--prefill-policy",
        part="policy",
        default=None,
        choices=POLICIES,
        help="How a prefill worker is chosen; --policy when not set.",
    )
    decode_policy: str | None = flag(
        "--decode-policy",
        part="policy",
        default=None,
        choices=POLICIES,
        help="How a decode worker is chosen; --policy when not set.",
    )
    model_policy: tuple[tuple[str, ...], ...] = flag(
        "--model-policy",
        part="policy",
        default=(),
        many=True,
        help="MODEL=POLICY, for requests of that model.",
    )
    cache_threshold: float = flag(
        "--cache-threshold",
        part="policy",
        default=0.3,
        convert=share,
        help="Least share of a prompt that a worker must have seen to be chosen for it.",
    )
    balance_abs_threshold: int = flag(
        "--balance-abs-threshold",
        part="policy",
        default=64,
        convert=whole(0),
        help="cache_aware balances by load if the loads differ by more than this and …",
    )
    balance_rel_threshold: float = flag(
        "--balance-rel-threshold",
        part="policy",
        default=1.5,
        convert=ratio,
        help="… the largest is more than this times the smallest.",
    )
    max_tree_size: int = flag(
        "--max-tree-size",
        part="policy",
        default=2**26,
        convert=whole(1024),
        help="Bytes of prompts that cache_aware remembers of each worker.",
    )
    hash_header: str = flag(
        "--hash-header",
        part="policy",
        default="x-sgl-routing-key",
        convert=header,
        help="The request header that consistent_hashing goes by.",
    )
    length_bucket: tuple[tuple[str, ...], ...] = flag(
        "--length-bucket",
        part="policy",
        default=(),
        many=True,
        help="LIMIT URL...: these workers serve requests of at most LIMIT tokens (or inf).",
    )
    slow_start_secs: float = flag(
        "--slow-start-secs",
        part="policy",
        default=0.0,
        convert=seconds(),
        help="A worker that joins or recovers gets its share of requests over this time.",
    )
    max_concurrent_requests: int = flag(
        "--max-concurrent-requests",
        part="limits",
        default=-1,
        convert=whole(-1),
        help="Requests that may be at workers at a time, of all processes together; -1: any.",
    )
    rate_limit_tokens_per_second: int | None = flag(
        "--rate-limit-tokens-per-second",
        part="limits",
        default=None,
        convert=whole(1),
        help="Requests that may begin per second, --max-concurrent-requests of them at once.",
    )
    queue_size: int = flag(
        "--queue-size",
        part="limits",
        default=100,
        convert=whole(0),
        help="Requests that may wait in each process for either limit; more are answered 429.",
    )
    queue_timeout_secs: float = flag(
        "--queue-timeout-secs",
        part="limits",
        default=60.0,
        convert=seconds(0.01),
        help="How long one waits; then it is answered 408.",
    )
    sampling_defaults: dict[str, Any] | None = flag(
        "--sampling-defaults",
        part="requests",
        default=None,
        convert=sampling,
        help="JSON: sampling values of requests that set none, or {min, max} bands.",
    )
    sampling_conflict: str = flag(
        "--sampling-conflict",
        part="requests",
        default="reject",
        choices=("reject", "allow"),
        help="What happens to a request with another value than --sampling-defaults.",
    )
    tokenizer_path: str | None = flag(
        "--tokenizer-path",
        "--model-path",
        part="requests",
        default=None,
        help="A GGUF file or model folder; text chats are tokenised here and sent as input_ids.",
    )
    chat_template: str | None = flag(
        "--chat-template",
        part="requests",
        default=None,
        help="A file with a Jinja chat template, instead of the tokenizer's.",
    )
    no_input_ids_for: tuple[tuple[str, ...], ...] = flag(
        "--no-input-ids-for",
        part="requests",
        default=(),
        many=True,
        help="Models whose engines tokenise themselves; tokens then only choose the worker.",
    )
    request_timeout_secs: float = flag(
        "--request-timeout-secs",
        part="time",
        default=1800.0,
        convert=seconds(0.01),
        help="A JSON answer must be complete, a stream must have begun, within this time.",
    )
    stream_idle_timeout_secs: float = flag(
        "--stream-idle-timeout-secs",
        part="time",
        default=300.0,
        convert=seconds(0.01),
        help="The longest silence within a stream.",
    )
    stale_request_timeout_secs: float = flag(
        "--stale-request-timeout-secs",
        part="time",
        default=7200.0,
        convert=seconds(0.01),
        help="No request lives longer; it is ended with 504 stale_request_expired.",
    )
    connect_timeout_secs: float = flag(
        "--connect-timeout-secs",
        part="time",
        default=5.0,
        convert=seconds(0.01),
        help="The longest wait for a connection to a worker.",
    )
    client_idle_timeout_secs: float = flag(
        "--client-idle-timeout-secs",
        part="time",
        default=75.0,
        convert=seconds(0.05),
        help="A client connection without a request, or within half of one, is closed after it.",
    )
    shutdown_grace_period_secs: float = flag(
        "--shutdown-grace-period-secs",
        part="time",
        default=180.0,
        convert=seconds(),
        help="How long requests may finish after a signal to end; the rest is aborted.",
    )
    drain_timeout_secs: float = flag(
        "--drain-timeout-secs",
        part="time",
        default=600.0,
        convert=seconds(),
        help="How long a worker that is removed may finish its requests.",
    )
    retry_max_retries: int = flag(
        "--retry-max-retries",
        part="retries",
        default=5,
        convert=whole(0, 100),
        help="Attempts after the first, where nothing has been sent to the client.",
    )
    retry_initial_backoff_ms: int = flag(
        "--retry-initial-backoff-ms",
        part="retries",
        default=50,
        convert=whole(1),
        help="Wait before all workers are tried once more; it grows each time.",
    )
    retry_max_backoff_ms: int = flag(
        "--retry-max-backoff-ms",
        part="retries",
        default=5000,
        convert=whole(1),
        help="The longest such wait.",
    )
    retry_backoff_multiplier: float = flag(
        "--retry-backoff-multiplier",
        part="retries",
        default=1.5,
        convert=ratio,
        help="What the wait grows by each time.",
    )
    retry_jitter_factor: float = flag(
        "--retry-jitter-factor",
        part="retries",
        default=0.2,
        convert=share,
        help="The share by which a wait is longer or shorter by chance.",
    )
    disable_retries: bool = flag(
        "--disable-retries",
        part="retries",
        default=False,
        switch=True,
        help="The first attempt counts.",
    )
    cb_failure_threshold: int = flag(
        "--cb-failure-threshold",
        part="circuit breaker",
        default=10,
        convert=whole(1),
        help="Failures in a row that open a worker's breaker.",
    )
    cb_success_threshold: int = flag(
        "--cb-success-threshold",
        part="circuit breaker",
        default=3,
        convert=whole(1),
        help="Successful probes that close it again.",
    )
    cb_timeout_duration_secs: float = flag(
        "--cb-timeout-duration-secs",
        part="circuit breaker",
        default=60.0,
        convert=seconds(0.001),
        help="How long it stays open before a probe.",
    )
    cb_window_duration_secs: float = flag(
        "--cb-window-duration-secs",
        part="circuit breaker",
        default=120.0,
        convert=seconds(0.001),
        help="Failures longer apart than this are not in a row.",
    )
    disable_circuit_breaker: bool = flag(
        "--disable-circuit-breaker",
        part="circuit breaker",
        default=False,
        switch=True,
        help="Breakers never open.",
    )
    health_check_endpoint: str = flag(
        "--health-check-endpoint",
        part="health",
        default="/health",
        convert=path,
        help="What a worker is asked.",
    )
    health_check_interval_secs: float = flag(
        "--health-check-interval-secs",
        part="health",
        default=10.0,
        convert=seconds(0.02),
        help="Time between checks of a worker.",
    )
    health_check_timeout_secs: float = flag(
        "--health-check-timeout-secs",
        part="health",
        default=5.0,
        convert=seconds(0.01),
        help="A check that takes longer has failed.",
    )
    health_failure_threshold: int = flag(
        "--health-failure-threshold",
        part="health",
        default=3,
        convert=whole(1),
        help="Failed checks in a row after which a worker gets no requests.",
    )
    health_success_threshold: int = flag(
        "--health-success-threshold",
        part="health",
        default=2,
        convert=whole(1),
        help="Good checks in a row after which it gets them again.",
    )
    disable_health_check: bool = flag(
        "--disable-health-check",
        part="health",
        default=False,
        switch=True,
        help="Only requests tell whether a worker works.",
    )
    log_level: str = flag(
        "--log-level",
        part="log",
        default="info",
        choices=("debug", "info", "warn", "warning", "error"),
        help="Least severity that is logged.",
    )
    disable_access_log: bool = flag(
        "--disable-access-log",
        part="log",
        default=False,
        switch=True,
        help="No line for each request.",
    )

    @property
    def worker_urls(self) -> tuple[str, ...]:
        """All of --worker-urls."""
        return flat(self.worker_urls_given)

    @property
    def prefill_workers(self) -> tuple[tuple[str, int | None], ...]:
        """URL and bootstrap port of each --prefill."""
        return tuple(prefill_of(words) for words in self.prefill)

    @property
    def model_policies(self) -> dict[str, str]:
        """Model to policy, of --model-policy."""
        return dict(policy_of(word) for word in flat(self.model_policy))

    @property
    def length_buckets(self) -> dict[str, float]:
        """Worker URL to the most tokens of a request there."""
        return {url: limit for words in self.length_bucket for url, limit in bucket_of(words)}


def parse(argv: Sequence[str]) -> RouterArgs:
    """The router that a command line (without `keel router`) asks for.

    Raises:
        ArgumentError: a flag is unknown, malformed, or contradicts another one.
    """
    refuse(argv)
    args = parse_table(RouterArgs, argv, "keel router", "One front door for many engines.")
    validate(args)
    return args


def validate(args: RouterArgs) -> None:
    """Check what no single flag can know.

    Raises:
        ArgumentError: naming the flags and the fix.
    """
    if args.max_concurrent_requests == 0:
        raise ArgumentError("--max-concurrent-requests 0 lets nothing begin", "-1 sets no limit")
    try:
        _ = args.model_policies
        prefill, buckets = args.prefill_workers, args.length_buckets
    except ValueError as error:
        raise ArgumentError(str(error), "`keel router --help` shows the form") from None
    decode, plain = flat(args.decode), args.worker_urls
    pd = args.pd_disaggregation
    if (prefill or decode) and not pd:
        raise ArgumentError("--prefill and --decode need --pd-disaggregation", "add it")
    if pd and plain:
        raise ArgumentError(
            "--worker-urls does not say which part of a request its workers do",
            "with --pd-disaggregation give --prefill and --decode",
        )
    dynamic = (args.worker_file, args.discover_dns, args.discover_docker)
    if pd and bool(prefill) != bool(decode) and not any(dynamic):
        missing = "--decode" if prefill else "--prefill"
        raise ArgumentError(f"--pd-disaggregation without {missing}", f"add {missing} URL")
    everybody = [*plain, *(url for url, _ in prefill), *decode]
    twice = {url for url in everybody if everybody.count(url) > 1}
    if twice:
        raise ArgumentError(f"the worker {min(twice)} is given twice", "name each worker once")
    if strangers := [url for url in buckets if url not in everybody and not any(dynamic)]:
        raise ArgumentError(
            f"--length-bucket names {strangers[0]}, which is no worker",
            "give it to --worker-urls, --prefill or --decode too",
        )
    check_sampling(args.sampling_defaults or {}, args.sampling_conflict)
