"""A checkpoint's tensors as a model wants them: checked, in its dtype, on its device."""

from __future__ import annotations

import torch

from keel.errors import ModelError
from keel.layers.linear import Linear, make_linear
from keel.layers.rotary import alternate_rows
from keel.models.config import ModelConfig
from keel.weights.checkpoint import Checkpoint

# Tensors whose rows go by the positions in a head.
_BY_HEAD = (".q_proj.", ".k_proj.", ".q_norm.", ".k_norm.")


class Weights:
    """Reads a checkpoint's tensors, checks their shapes, brings them to dtype and device."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: ModelConfig,
        dtype: torch.dtype,
        device: torch.device,
        quantization: str | None = None,
    ) -> None:
        self._checkpoint, self._config = checkpoint, config
        self._dtype, self._device = dtype, device
        self.quantization = quantization

    def tensor(self, name: str, *shape: int) -> torch.Tensor:
        """One tensor; rows of q and k in the order that `keel.layers.rotary` wants.

        Raises:
            ModelError: it is missing, or of another shape.
        """
        value = self._checkpoint.tensor(name)
        if tuple(value.shape) != shape:
            raise ModelError(
                f"tensor {name!r} of {self._checkpoint.path} has shape {tuple(value.shape)}, "
                f"the config says {shape}",
                "fetch the checkpoint anew",
            )
        value = value.to(device=self._device, dtype=self._dtype)
        if any(part in name for part in _BY_HEAD):
            return alternate_rows(value, self._config.head_dim)
        return value

    def linear(self, prefix: str, sizes: dict[str, int], inputs: int, bias: bool = False) -> Linear:
        """Several projections of one input as a single product."""
        parts = [(f"{prefix}.{name}", size) for name, size in sizes.items()]
        weights = [self.tensor(f"{name}.weight", size, inputs) for name, size in parts]
        biases = [self.tensor(f"{name}.bias", size) for name, size in parts] if bias else None
        joined = None if biases is None else torch.cat(biases)
        return make_linear(torch.cat(weights), joined, self.quantization)
