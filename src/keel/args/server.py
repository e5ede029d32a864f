"""The flags of `keel serve`: names and meanings as the SGLang ecosystem knows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from keel.args.table import flag, json_object, parse_table, whole
from keel.errors import ArgumentError

DTYPES = ("auto", "float32", "float16", "bfloat16")
DEVICES = ("auto", "cpu", "cuda")
QUANTIZATIONS = ("w16",)
LOG_LEVELS = ("debug", "info", "warning", "error")


def _fraction(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number between 0 and 1") from None
    if not 0.0 < value < 1.0:
        raise ValueError(f"{value} is not between 0 and 1")
    return value


def _chunk(text: str) -> int:
    value = whole(-1)(text)
    if value == 0:
        raise ValueError("0 would never finish a prompt; -1 turns chunking off")
    return value


@dataclass(frozen=True)
class ServerArgs:
    """What a server was asked to do. Every field does something; `None` means: decide."""

    model_path: str = flag(
        "--model-path",
        "--model",
        part="model",
        help="A GGUF file, or a Hugging Face folder (config.json, *.safetensors, tokenizer.json).",
    )
    tokenizer_path: str | None = flag(
        "--tokenizer-path",
        part="model",
        default=None,
        help="A tokenizer.json, or the folder that has one, instead of the checkpoint's.",
    )
    served_model_name: str | None = flag(
        "--served-model-name",
        part="model",
        default=None,
        help="The name that /v1/models gives; the model path when not set.",
    )
    chat_template: str | None = flag(
        "--chat-template",
        part="model",
        default=None,
        help="A file with a Jinja chat template, instead of the checkpoint's.",
    )
    default_chat_template_kwargs: dict[str, Any] | None = flag(
        "--default-chat-template-kwargs",
        part="model",
        default=None,
        convert=json_object,
        help="A JSON object of variables for the chat template; a request's own win.",
    )
    dtype: str = flag(
        "--dtype",
        part="model",
        default="auto",
        choices=DTYPES,
        help="Of weights and activations; auto is float32 on the CPU, the checkpoint's on a GPU.",
    )
    quantization: str | None = flag(
        "--quantization",
        part="model",
        default=None,
        choices=QUANTIZATIONS,
        help="Of matrices on the CPU: w16 keeps float16 weights, with activations and sums in "
        "float32. Exact when not set.",
    )
    context_length: int | None = flag(
        "--context-length",
        part="model",
        default=None,
        convert=whole(1),
        help="The most tokens of one request, prompt and answer; the checkpoint's when not set.",
    )
    device: str = flag(
        "--device",
        part="device",
        default="auto",
        choices=DEVICES,
        help="Where the model runs; auto is cuda where there is one.",
    )
    tp_size: int = flag(
        "--tp-size",
        "--tp",
        "--tensor-parallel-size",
        part="device",
        default=1,
        convert=whole(1),
        help="Devices that share each layer.",
    )
    mem_fraction_static: float | None = flag(
        "--mem-fraction-static",
        part="cache",
        default=None,
        convert=_fraction,
        help="Share of the memory that is free at start for weights and KV pool together; "
        "when not set 0.85 on a GPU, 0.5 on the CPU.",
    )
    max_total_tokens: int | None = flag(
        "--max-total-tokens",
        part="cache",
        default=None,
        convert=whole(1),
        help="Size of the KV pool in tokens, instead of what the memory fraction gives.",
    )
    disable_radix_cache: bool = flag(
        "--disable-radix-cache",
        part="cache",
        default=False,
        switch=True,
        help="Forget a prompt's keys and values with its request; no reuse of shared prefixes.",
    )
    enable_cache_report: bool = flag(
        "--enable-cache-report",
        part="cache",
        default=False,
        switch=True,
        help="Report prompt tokens that came from the prefix cache in `usage`.",
    )
    max_running_requests: int | None = flag(
        "--max-running-requests",
        part="scheduler",
        default=None,
        convert=whole(1),
        help="Requests in one batch; when not set 32 on the CPU, 256 on a GPU.",
    )
    max_queued_requests: int | None = flag(
        "--max-queued-requests",
        part="scheduler",
        default=None,
        convert=whole(1),
        help="Requests that may wait; beyond it a request gets 503. Unlimited when not set.",
    )
    chunked_prefill_size: int | None = flag(
        "--chunked-prefill-size",
        part="scheduler",
        default=None,
        convert=_chunk,
        help="Prompt tokens computed in one step, so that a long prompt does not hold up decoding; "
        "-1 turns chunking off; when not set 512 on the CPU, 4096 on a GPU.",
    )
    max_prefill_tokens: int = flag(
        "--max-prefill-tokens",
        part="scheduler",
        default=16384,
        convert=whole(1),
        help="Prompt tokens of all requests in one step; a single longer prompt goes alone.",
    )
    random_seed: int | None = flag(
        "--random-seed",
        part="scheduler",
        default=None,
        convert=whole(0, 2**63 - 1),
        help="Seed of the requests that bring none; random when not set.",
    )
    host: str = flag("--host", part="server", default="127.0.0.1", help="The address to listen on.")
    port: int = flag(
        "--port",
        part="server",
        default=30000,
        convert=whole(0, 65535),
        help="The port to listen on; 0 takes a free one and logs it.",
    )
    api_key: str | None = flag(
        "--api-key",
        part="server",
        default=None,
        help="Requests must carry `Authorization: Bearer KEY`; health checks need not.",
    )
    enable_metrics: bool = flag(
        "--enable-metrics",
        part="server",
        default=True,
        switch=True,
        help="Serve Prometheus metrics at /metrics.",
    )
    log_level: str = flag(
        "--log-level",
        part="server",
        default="info",
        choices=LOG_LEVELS,
        help="Least severity that is logged.",
    )

    @property
    def model_name(self) -> str:
        """The name clients know the model by."""
        return self.served_model_name or self.model_path


def parse(argv: Sequence[str]) -> ServerArgs:
    """The server that a command line (without `keel serve`) asks for.

    Raises:
        ArgumentError: a flag is unknown, malformed, or contradicts another one.
    """
    args = parse_table(ServerArgs, argv, "keel serve", "Serve a model over the OpenAI HTTP API.")
    validate(args)
    return args


def validate(args: ServerArgs) -> None:
    """Check what no single flag can know.

    Raises:
        ArgumentError: naming the flags and the fix.
    """
    if not args.model_path.strip():
        raise ArgumentError("--model-path is empty", "give a GGUF file or a model folder")
    if args.tp_size > 1:
        raise ArgumentError(
            f"--tp-size {args.tp_size}: this engine runs a model on one device",
            "leave --tp-size at 1 and put several servers behind `keel router`",
        )
    if args.device == "cpu" and args.dtype == "float16":
        raise ArgumentError(
            "--device cpu with --dtype float16: CPUs compute float16 slower than float32",
            "use --dtype float32 or --dtype bfloat16",
        )
    pool, context = args.max_total_tokens, args.context_length
    if pool is not None and context is not None and context > pool:
        raise ArgumentError(
            f"--context-length {context} does not fit --max-total-tokens {pool}",
            f"raise --max-total-tokens to {context} or lower --context-length to {pool}",
        )
