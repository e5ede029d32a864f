"""A loaded model with its KV pool and attention backend: batches to tokens."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import torch

from keel.args import ServerArgs
from keel.attention.torch_sdpa import TorchAttention
from keel.cache.pool import KVLayout, KVPool
from keel.core import ForwardBatch, IntArray
from keel.errors import ArgumentError
from keel.layers.linear import can_quantize
from keel.layers.sampler import SamplingBatch, sample
from keel.models.config import ModelConfig
from keel.models.registry import load_model
from keel.weights.checkpoint import Checkpoint

log = logging.getLogger(__name__)

# Prefixes kept on the CPU unless a size is asked for: beyond this they cost memory that the rest
# of the machine wants.
_CPU_POOL_TOKENS = 65536


@dataclass(frozen=True)
class Device:
    """Where a model runs and in which dtype."""

    device: torch.device
    dtype: torch.dtype


def choose_device(args: ServerArgs, config: ModelConfig) -> Device:
    """What `--device` and `--dtype` mean on this machine.

    Raises:
        ArgumentError: CUDA is asked for and not there.
    """
    has_cuda = torch.cuda.is_available()
    if args.device == "cuda" and not has_cuda:
        raise ArgumentError(
            "--device cuda: torch sees no CUDA device here",
            "use --device cpu, or start where a GPU and a CUDA build of torch are",
        )
    name = args.device if args.device != "auto" else ("cuda" if has_cuda else "cpu")
    dtype = args.dtype
    if dtype == "auto":
        # Float32 on the CPU, so that tokens are those of the reference.
        dtype = "float32" if name == "cpu" else config.dtype
        if name == "cuda" and dtype == "float32":
            dtype = "bfloat16"
    return Device(torch.device(name), getattr(torch, dtype))


def choose_quantization(args: ServerArgs, where: Device) -> str | None:
    """What `--quantization` means on this device.

    Raises:
        ArgumentError: it is asked for where it is not made.
    """
    if args.quantization is None:
        return None
    if where.device.type != "cpu" or where.dtype != torch.float32:
        raise ArgumentError(
            f"--quantization {args.quantization} is for float32 on the CPU, "
            f"not {where.dtype} on {where.device}",
            "add --device cpu --dtype float32, or leave --quantization out",
        )
    return args.quantization if can_quantize(args.quantization) else None


class ModelRunner:
    """Owns the weights and the pool; the only place that calls the model."""

    def __init__(self, args: ServerArgs, checkpoint: Checkpoint) -> None:
        config = checkpoint.config
        self.where = choose_device(args, config)
        device, dtype = self.where.device, self.where.dtype
        self.context_length = args.context_length or config.max_position
        free = _free_bytes(device)
        with torch.inference_mode():
            self._model = load_model(
                checkpoint,
                dtype,
                device,
                self.context_length,
                choose_quantization(args, self.where),
            )
        layout = KVLayout(config.num_layers, config.num_kv_heads, config.head_dim, dtype)
        budget = (args.mem_fraction_static or (0.5 if device.type == "cpu" else 0.85)) * free
        left = int(budget) - (free - _free_bytes(device))
        self.pool_tokens = self._pool_tokens(args, layout, left)
        with torch.inference_mode():
            pool = KVPool(layout, self.pool_tokens, device)
        self._attention = TorchAttention(pool, config.num_heads, config.windows)

    def _pool_tokens(self, args: ServerArgs, layout: KVLayout, left: int) -> int:
        if args.max_total_tokens is not None:
            return args.max_total_tokens
        fits = left // layout.bytes_per_token
        if self.where.device.type == "cpu" and args.mem_fraction_static is None:
            fits = min(fits, max(_CPU_POOL_TOKENS, self.context_length))
        least = min(self.context_length, 1024)
        if fits < least:
            raise ArgumentError(
                f"after the weights, memory for {max(fits, 0)} tokens is left in the KV pool",
                "raise --mem-fraction-static, lower --context-length, or give --max-total-tokens",
            )
        return fits

    def __call__(self, batch: ForwardBatch, sampling: SamplingBatch) -> IntArray:
        """Run the model; the sampled token of each entry of `logit_index`."""
        return sample(self.logits(batch), sampling)

    @torch.inference_mode()
    def logits(self, batch: ForwardBatch) -> torch.Tensor:
        """Run the model; logits [L, vocab_size]."""
        batch.plan = self._attention.plan(batch)
        return self._model(batch, self._attention)


def _free_bytes(device: torch.device) -> int:
    """Memory that can be had: the GPU's, or the machine's within the control group's limit."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    lines = Path("/proc/meminfo").read_text().splitlines()
    sizes = {name: int(rest.split()[0]) * 1024 for name, rest in (x.split(":") for x in lines)}
    free = sizes["MemAvailable"]
    group = Path("/sys/fs/cgroup")
    for limit, usage in (
        (group / "memory.max", group / "memory.current"),
        (group / "memory/memory.limit_in_bytes", group / "memory/memory.usage_in_bytes"),
    ):
        try:
            free = min(free, int(limit.read_text()) - int(usage.read_text()))
        except (OSError, ValueError):  # no such version of control groups, or "max"
            continue
    return max(free, 0)
