"""The flags of `keel bench serve` and `keel bench offline`; one load, two ways to put it on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from keel.args.server import ServerArgs, validate
from keel.args.table import flag, json_object, parse_table, share, whole
from keel.errors import ArgumentError

ENDPOINTS = ("chat", "completions")


def _rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number of requests a second, or inf") from None
    if not value > 0:
        raise ValueError(f"{text} is not above 0; inf sends all at once")
    return value


@dataclass(frozen=True)
class LoadArgs:
    """What is asked, and how fast."""

    dataset_path: str | None = flag(
        "--dataset-path",
        part="load",
        default=None,
        help="A file of prompts instead of synthetic ones: JSON lines with prompt or messages and "
        "perhaps max_tokens, or JSON as ShareGPT has it.",
    )
    num_prompts: int = flag(
        "--num-prompts", part="load", default=32, convert=whole(1), help="How many requests."
    )
    request_rate: float = flag(
        "--request-rate",
        part="load",
        default=float("inf"),
        convert=_rate,
        help="Requests a second, with the gaps of a Poisson process; inf sends all at once.",
    )
    max_concurrency: int | None = flag(
        "--max-concurrency",
        part="load",
        default=None,
        convert=whole(1),
        help="No more requests than that at a time; the others wait at the client.",
    )
    random_input_len: int = flag(
        "--random-input-len",
        part="load",
        default=128,
        convert=whole(1),
        help="Tokens of a synthetic prompt, without the shared prefix.",
    )
    random_output_len: int = flag(
        "--random-output-len",
        part="load",
        default=64,
        convert=whole(1),
        help="Tokens of an answer, where the file of prompts does not say.",
    )
    random_range_ratio: float = flag(
        "--random-range-ratio",
        part="load",
        default=1.0,
        convert=share,
        help="Lengths are drawn between that share of the given ones and the given ones.",
    )
    random_prefix_len: int = flag(
        "--random-prefix-len",
        part="load",
        default=0,
        convert=whole(0),
        help="Tokens that the prompts of a group begin with: a system message in a chat.",
    )
    random_prefix_groups: int = flag(
        "--random-prefix-groups",
        part="load",
        default=1,
        convert=whole(1),
        help="How many different shared prefixes.",
    )
    disable_ignore_eos: bool = flag(
        "--disable-ignore-eos",
        part="load",
        default=False,
        switch=True,
        help="Let the model end an answer; otherwise ignore_eos asks for its full length.",
    )
    seed: int = flag(
        "--seed", part="load", default=1, convert=whole(0), help="Of prompts, lengths and gaps."
    )
    runs: int = flag(
        "--runs",
        part="load",
        default=1,
        convert=whole(1),
        help="Repeat with other prompts of the same kind; figures are the medians of the runs.",
    )
    warmup_requests: int = flag(
        "--warmup-requests",
        part="load",
        default=1,
        convert=whole(0),
        help="Requests before the clock starts.",
    )
    output_file: str | None = flag(
        "--output-file", part="report", default=None, help="Write the report as JSON there."
    )
    json: bool = flag(
        "--json",
        part="report",
        default=False,
        switch=True,
        help="Print the report as JSON instead of a table.",
    )


@dataclass(frozen=True)
class BenchServeArgs(LoadArgs):
    """A load on a server that speaks OpenAI's API."""

    base_url: str = flag(
        "--base-url",
        part="server",
        default="http://127.0.0.1:30000",
        help="Of the server; paths are put after it, /v1/chat/completions for one.",
    )
    endpoint: str = flag(
        "--endpoint",
        part="server",
        default="completions",
        choices=ENDPOINTS,
        help="Which API is asked; a chat puts the shared prefix into a system message.",
    )
    model: str | None = flag(
        "--model",
        part="server",
        default=None,
        help="The name to ask for; the first of /v1/models when not set.",
    )
    tokenizer: str | None = flag(
        "--tokenizer",
        part="server",
        default=None,
        help="A GGUF file or model folder: synthetic prompts then have exactly the lengths asked "
        "for; without it they are as many common words, nearly the same.",
    )
    api_key: str | None = flag(
        "--api-key", part="server", default=None, help="Sent as a bearer token."
    )
    extra_request_body: dict[str, Any] | None = flag(
        "--extra-request-body",
        part="server",
        default=None,
        convert=json_object,
        help="A JSON object of fields to put into every request.",
    )


@dataclass(frozen=True)
class BenchOfflineArgs(LoadArgs, ServerArgs):
    """A load on the engine inside this process; takes the flags of `keel serve` too."""


def parse_bench_serve(argv: Sequence[str]) -> BenchServeArgs:
    """What `keel bench serve` was asked.

    Raises:
        ArgumentError: naming the flag and the fix.
    """
    args = parse_table(BenchServeArgs, argv, "keel bench serve", "Put load on a server.")
    url = urlsplit(args.base_url)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ArgumentError(
            f"--base-url {args.base_url} is no URL of HTTP", "give one like http://127.0.0.1:30000"
        )
    _check_load(args)
    return args


def parse_bench_offline(argv: Sequence[str]) -> BenchOfflineArgs:
    """What `keel bench offline` was asked.

    Raises:
        ArgumentError: naming the flag and the fix.
    """
    args = parse_table(BenchOfflineArgs, argv, "keel bench offline", "Load without a server.")
    validate(args)
    _check_load(args)
    return args


def _check_load(args: LoadArgs) -> None:
    if args.dataset_path and args.random_prefix_len:
        raise ArgumentError(
            f"--random-prefix-len {args.random_prefix_len} with --dataset-path: a file brings its "
            "own prompts",
            "leave one of them out",
        )
