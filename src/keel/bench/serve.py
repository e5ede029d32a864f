"""`keel bench serve`: load on any server that speaks OpenAI's API."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from keel.args import ServerArgs
from keel.args.bench import BenchServeArgs, parse_bench_serve
from keel.bench.client import Endpoint, ask, get
from keel.bench.record import Record, figures
from keel.bench.report import report, show
from keel.bench.workload import Prompt, Writer, arrivals, exact, prompts, words
from keel.errors import BenchError

PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


def main(argv: Sequence[str]) -> None:
    """Run and print.

    Raises:
        ArgumentError: the command line cannot be meant.
        BenchError: the server cannot be asked, or answered nothing.
    """
    args = parse_bench_serve(argv)
    show(run(args), args)


def run(args: BenchServeArgs) -> dict[str, Any]:
    """All runs; the report as JSON has it.

    Raises:
        BenchError: the server cannot be asked, or answered nothing.
    """
    return asyncio.run(_run(args))


async def _run(args: BenchServeArgs) -> dict[str, Any]:
    endpoint = Endpoint.of(args.base_url, args.api_key)
    model = args.model or await _first_model(endpoint, args.base_url)
    write = _writer(args)
    if args.warmup_requests:
        warm = replace(args, num_prompts=args.warmup_requests, request_rate=float("inf"))
        await _load(endpoint, model, warm, prompts(warm, -1, write), arrivals(warm, -1))
    runs = []
    for number in range(args.runs):
        asked = prompts(args, number, write)
        records = await _load(endpoint, model, args, asked, arrivals(args, number))
        runs.append((figures(records), records))
    whole = report("serve", args.base_url, args, runs)
    if not any(one.completed for one, _ in runs):
        raise BenchError(
            f"{args.base_url} answered none of {args.num_prompts} requests: {whole['errors'][0]}",
            "see the server's log; --extra-request-body and --endpoint say what is sent",
        )
    return {**whole, "model": model, "endpoint": args.endpoint}


async def _first_model(endpoint: Endpoint, url: str) -> str:
    try:
        status, body = await get(endpoint, "/v1/models")
        if status == 200:
            return str(msgspec.json.decode(body)["data"][0]["id"])
        what = f"HTTP {status}"
    except (OSError, TimeoutError, msgspec.DecodeError, LookupError, TypeError) as error:
        what = str(error) or type(error).__name__
    raise BenchError(
        f"{url}/v1/models names no model: {what}", "start the server, mend --base-url, or --model"
    )


def _writer(args: BenchServeArgs) -> Writer:
    if args.tokenizer is None:
        return words
    # Only who wants exact lengths waits for this.
    from keel.tokenizer.load import load_tokenizer
    from keel.weights.checkpoint import open_checkpoint

    tokenizer = load_tokenizer(ServerArgs(args.tokenizer), open_checkpoint(args.tokenizer))
    return exact(lambda text: tokenizer.encode(text, add_special_tokens=False), tokenizer.decode)


def body_of(args: BenchServeArgs, model: str, prompt: Prompt) -> dict[str, Any]:
    """The request of one prompt."""
    common = {
        "model": model,
        "max_tokens": prompt.new_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **({} if args.disable_ignore_eos else {"ignore_eos": True}),
        **(args.extra_request_body or {}),
    }
    if args.endpoint == "completions":
        if prompt.messages:
            text = "\n".join(str(one.get("content", "")) for one in prompt.messages)
        else:
            text = f"{prompt.prefix} {prompt.text}" if prompt.prefix else prompt.text
        return {**common, "prompt": text}
    if prompt.messages:
        return {**common, "messages": list(prompt.messages)}
    system = [{"role": "system", "content": prompt.prefix}] if prompt.prefix else []
    return {**common, "messages": [*system, {"role": "user", "content": prompt.text}]}


async def _load(
    endpoint: Endpoint,
    model: str,
    args: BenchServeArgs,
    asked: Sequence[Prompt],
    when: Sequence[float],
) -> list[Record]:
    loop = asyncio.get_running_loop()
    start = loop.time()
    gate = asyncio.Semaphore(args.max_concurrency) if args.max_concurrency else None

    async def one(prompt: Prompt, at: float) -> Record:
        await asyncio.sleep(start + at - loop.time())
        async with gate or contextlib.nullcontext():
            return await ask(endpoint, PATHS[args.endpoint], body_of(args, model, prompt))

    return await asyncio.gather(*(one(*pair) for pair in zip(asked, when, strict=True)))
