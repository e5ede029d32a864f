"""Flags of SGLang's router that `keel router` does not have: why, and what to write instead."""

from __future__ import annotations

from collections.abc import Sequence

from keel.errors import ArgumentError

_LEAVE_OUT = "leave it out"
_ENGINE = "give it to `keel serve`: the engine parses its own answers"
_FRONT = "terminate TLS before the router (nginx, Caddy, an ingress), on the same host"
_ADMIN = "use --admin-api-key"
_HISTORY = "the router keeps no conversations", "send each request with its messages"
_KUBERNETES = (
    "it does not ask the Kubernetes API",
    "give --discover-dns the name of a headless Service, which lists the ready pods",
)
_TRACE = "it makes no spans of its own", "traceparent and tracestate reach the engines: trace there"
_STARTUP = "it does not wait for workers: it takes each one as soon as its checks pass", _LEAVE_OUT
_TOKENIZER_CACHE = "its routing tokenisation has no cache", _LEAVE_OUT
_METRICS = "its metrics are on its own port", "scrape /metrics there"

# Name to the reason and what to do.
REFUSED: dict[str, tuple[str, str]] = {
    "--assignment-mode": ("it has no manual policy", "use --policy consistent_hashing"),
    "--max-idle-secs": ("it has no manual policy", "use --policy consistent_hashing"),
    "--bucket-adjust-interval-secs": ("buckets stay as given", "use --length-bucket LIMIT URL..."),
    "--eviction-interval-secs": ("prefix trees are trimmed as they grow", _LEAVE_OUT),
    "--dp-aware": ("it does not choose ranks within a worker", "give each rank's URL as a worker"),
    "--enable-igw": ("several models are always routed", _LEAVE_OUT),
    "--mini-lb": ("there is one router", _LEAVE_OUT),
    "--worker-startup-timeout-secs": _STARTUP,
    "--worker-startup-check-interval": _STARTUP,
    "--service-discovery": _KUBERNETES,
    "--selector": _KUBERNETES,
    "--service-discovery-port": _KUBERNETES,
    "--service-discovery-namespace": _KUBERNETES,
    "--prefill-selector": _KUBERNETES,
    "--decode-selector": _KUBERNETES,
    "--log-dir": ("it logs to stderr", "redirect that: 2>>FILE"),
    "--prometheus-port": _METRICS,
    "--prometheus-host": _METRICS,
    "--prometheus-duration-buckets": ("the buckets are fixed, 1 ms to 600 s", _LEAVE_OUT),
    "--cors-allowed-origins": ("browsers are not its clients", "let a web server before it add it"),
    "--tokenizer-cache-enable-l0": _TOKENIZER_CACHE,
    "--tokenizer-cache-l0-max-entries": _TOKENIZER_CACHE,
    "--tokenizer-cache-enable-l1": _TOKENIZER_CACHE,
    "--tokenizer-cache-l1-max-memory": _TOKENIZER_CACHE,
    "--reasoning-parser": ("answers pass unchanged", _ENGINE),
    "--tool-call-parser": ("answers pass unchanged", _ENGINE),
    "--mcp-config-path": ("it calls no tools", "call them in the client"),
    "--backend": ("every worker speaks OpenAI's API", _LEAVE_OUT),
    "--history-backend": _HISTORY,
    "--oracle-wallet-path": _HISTORY,
    "--oracle-tns-alias": _HISTORY,
    "--oracle-connect-descriptor": _HISTORY,
    "--oracle-username": _HISTORY,
    "--oracle-password": _HISTORY,
    "--oracle-pool-min": _HISTORY,
    "--oracle-pool-max": _HISTORY,
    "--oracle-pool-timeout-secs": _HISTORY,
    "--postgres-db-url": _HISTORY,
    "--postgres-pool-max": _HISTORY,
    "--redis-url": _HISTORY,
    "--redis-pool-max": _HISTORY,
    "--redis-retention-days": _HISTORY,
    "--client-cert-path": ("workers are spoken to without TLS", _FRONT),
    "--client-key-path": ("workers are spoken to without TLS", _FRONT),
    "--ca-cert-paths": ("workers are spoken to without TLS", _FRONT),
    "--tls-cert-path": ("it serves without TLS", _FRONT),
    "--tls-key-path": ("it serves without TLS", _FRONT),
    "--enable-trace": _TRACE,
    "--otlp-traces-endpoint": _TRACE,
    "--control-plane-api-keys": ("changes of workers have one key", _ADMIN),
    "--control-plane-audit-enabled": ("it keeps no audit trail", _LEAVE_OUT),
    "--jwt-issuer": ("it reads no tokens", _ADMIN),
    "--jwt-audience": ("it reads no tokens", _ADMIN),
    "--jwt-jwks-uri": ("it reads no tokens", _ADMIN),
    "--jwt-role-mapping": ("it reads no tokens", _ADMIN),
}
_POLICIES = {
    "manual": ("the policy manual does not exist", "consistent_hashing keeps a key at its worker"),
    "bucket": ("the policy bucket does not exist", "give --length-bucket LIMIT URL... instead"),
}
_POLICY_FLAGS = ("--policy", "--prefill-policy", "--decode-policy")


def refuse(argv: Sequence[str]) -> None:
    """Say of a flag that people bring from SGLang's router what to write instead.

    Raises:
        ArgumentError: there is one among the words.
    """
    for word, following in zip(argv, [*argv[1:], ""], strict=True):
        name, _, value = word.partition("=")
        if name in REFUSED:
            why, instead = REFUSED[name]
            raise ArgumentError(f"keel router has no {name}: {why}", instead)
        if name in _POLICY_FLAGS and (value or following) in _POLICIES:
            raise ArgumentError(*_POLICIES[value or following])
