"""Values of the router's flags: from text to what is meant, with a sentence where that fails."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from keel.args.table import whole
from keel.errors import ArgumentError

POLICIES = (
    "round_robin",
    "random",
    "power_of_two",
    "least_load",
    "cache_aware",
    "consistent_hashing",
)
SAMPLING_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "n",
)
_HEADER_NAME = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")


def seconds(low: float = 0.0) -> Callable[[str], float]:
    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a number of seconds") from None
        if not low <= value < float("inf"):
            raise ValueError(f"{text} is not a number of seconds of at least {low:g}")
        return value

    return convert


def ratio(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number of at least 1") from None
    if not 1.0 <= value < float("inf"):
        raise ValueError(f"{text} is not at least 1")
    return value


def path(text: str) -> str:
    if not text.startswith("/") or any(c.isspace() for c in text):
        raise ValueError(f"{text!r} is not a path; it begins with / and has no space")
    return text


def header(text: str) -> str:
    if not _HEADER_NAME.fullmatch(text.lower()):
        raise ValueError(f"{text!r} is not the name of a header")
    return text.lower()


def worker_url(text: str) -> str:
    """A worker's URL in one spelling: `http://host:port[/base]`, without a slash at the end.

    Raises:
        ValueError: it is not a URL that a worker can have.
    """
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError as error:
        raise ValueError(f"{text!r} is not the URL of a worker: {error}") from None
    if url.scheme != "http":
        raise ValueError(f"{text!r} is not the URL of a worker; it begins with http://")
    if not url.hostname or url.query or url.fragment or url.username or re.search(r"\s", text):
        raise ValueError(f"{text!r} is not the URL of a worker like http://10.0.0.1:30000")
    host = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
    return f"http://{host}:{port or 80}{url.path.rstrip('/')}"


def sampling(text: str) -> dict[str, Any]:
    """`{field: value}` or `{field: {"min": .., "max": ..}}`; a field twice cannot be meant."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise ValueError(f"{key!r} is there twice")
            found[key] = value
        return found

    try:
        value = json.loads(text, object_pairs_hook=once)
    except json.JSONDecodeError as error:
        raise ValueError(f"{text!r} is not JSON: {error.msg} at column {error.colno}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{text!r} is JSON but no object")
    unknown = [key for key in value if key not in SAMPLING_FIELDS]
    if unknown:
        raise ValueError(f"{unknown[0]!r} is none of {', '.join(SAMPLING_FIELDS)}")
    return value


def flat(groups: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
    """The values of a flag that may be given many times."""
    return tuple(word for group in groups for word in group)


def prefill_of(words: tuple[str, ...]) -> tuple[str, int | None]:
    if len(words) > 2:
        raise ValueError(f"--prefill takes a URL and a bootstrap port, not {' '.join(words)}")
    port = words[1] if len(words) == 2 else "none"
    return worker_url(words[0]), None if port == "none" else whole(1, 65535)(port)


def policy_of(word: str) -> tuple[str, str]:
    model, equals, policy = word.rpartition("=")
    if not equals or not model or policy not in POLICIES:
        raise ValueError(f"--model-policy {word} is not MODEL=POLICY; policies: {POLICIES}")
    return model, policy


def bucket_of(words: tuple[str, ...]) -> list[tuple[str, float]]:
    limit = float("inf") if words[0] == "inf" else whole(1)(words[0])
    if len(words) < 2:
        raise ValueError(f"--length-bucket {words[0]} names no worker")
    return [(worker_url(url), limit) for url in words[1:]]


# Field to (least, most, whole number).
_RANGES: dict[str, tuple[float, float, bool]] = {
    "temperature": (0.0, 2.0, False),
    "top_p": (1e-9, 1.0, False),
    "top_k": (-1, 2**31 - 1, True),
    "min_p": (0.0, 1.0, False),
    "repetition_penalty": (1e-9, 2.0, False),
    "frequency_penalty": (-2.0, 2.0, False),
    "presence_penalty": (-2.0, 2.0, False),
    "n": (1, 128, True),
}


def check_sampling(rules: dict[str, Any], conflict: str) -> None:
    """Check a sampling contract; `conflict` is `reject` or `allow`.

    Raises:
        ArgumentError: a value is out of range, or a band comes with `allow`.
    """
    for name, value in rules.items():
        band = isinstance(value, dict)
        if band and (not value or set(value) - {"min", "max"}):
            raise ArgumentError(f"the band {value} of {name} is not {{min, max}}", "give both")
        if band and conflict == "allow":
            raise ArgumentError(
                f"a band of {name} only refuses, and --sampling-conflict allow refuses nothing",
                "use --sampling-conflict reject, or one value instead of the band",
            )
        least, most, integral = _RANGES[name]
        for number in value.values() if band else (value,):
            kinds = int if integral else (int, float)
            if isinstance(number, bool) or not isinstance(number, kinds):
                kind = "a whole number" if integral else "a number"
                raise ArgumentError(f"{name} {json.dumps(number)} is not {kind}", "give one")
            if not least <= number <= most:
                raise ArgumentError(
                    f"{name} {number} is out of range", f"give one from {least:g} to {most:g}"
                )
        if band and value.get("min", least) > value.get("max", most):
            raise ArgumentError(f"the band of {name} is empty", "give a min below the max")
