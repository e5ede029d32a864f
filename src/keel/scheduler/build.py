"""A scheduler over a real model, from the server's arguments."""

from __future__ import annotations

from dataclasses import dataclass

from keel.args import ServerArgs
from keel.cache.manager import CacheManager
from keel.cache.radix import RadixCache
from keel.cache.table import RequestTable
from keel.models.runner import ModelRunner
from keel.scheduler.planner import Limits
from keel.scheduler.scheduler import Scheduler
from keel.weights.checkpoint import Checkpoint


@dataclass(frozen=True)
class Built:
    """A scheduler, its limits, and the runner below it."""

    scheduler: Scheduler
    limits: Limits
    runner: ModelRunner


def limits_of(args: ServerArgs, on_cpu: bool, context_length: int, pool_tokens: int) -> Limits:
    """What the flags mean for the scheduler."""
    chunk = args.chunked_prefill_size or (512 if on_cpu else 4096)
    return Limits(
        max_running=args.max_running_requests or (32 if on_cpu else 256),
        prefill_tokens=args.max_prefill_tokens
        if chunk < 0
        else min(chunk, args.max_prefill_tokens),
        chunked=chunk > 0,
        max_request_tokens=min(context_length, pool_tokens),
        max_queued=args.max_queued_requests,
    )


def build_scheduler(args: ServerArgs, checkpoint: Checkpoint) -> Built:
    """Load the model and put a scheduler over it.

    Raises:
        ModelError, ArgumentError: the model cannot be loaded, or not like this.
    """
    runner = ModelRunner(args, checkpoint)
    device = runner.where.device
    on_cpu = device.type == "cpu"
    limits = limits_of(args, on_cpu, runner.context_length, runner.pool_tokens)
    table = RequestTable(limits.max_running, limits.max_request_tokens, device)
    prefixes = None if args.disable_radix_cache else RadixCache()
    cache = CacheManager(runner.pool_tokens, table, prefixes)
    scheduler = Scheduler(
        runner,
        limits,
        cache,
        table,
        device,
        eos_token_ids=checkpoint.config.eos_token_ids,
        random_seed=args.random_seed,
    )
    return Built(scheduler, limits, runner)
