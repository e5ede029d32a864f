"""Model classes by the architecture that a checkpoint names."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Protocol

from keel.errors import ModelError
from keel.models.config import ModelConfig
from keel.weights.checkpoint import Checkpoint

if TYPE_CHECKING:  # `keel check` asks what is known, without loading torch
    import torch

    from keel.attention.base import AttentionBackend
    from keel.core import ForwardBatch

# architecture -> (module, class)
_LLAMA = ("keel.models.llama", "Llama")
ARCHITECTURES = {
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": _LLAMA,
    "MixtralForCausalLM": _LLAMA,
    "Qwen2ForCausalLM": _LLAMA,
    "Qwen3ForCausalLM": _LLAMA,
    "Qwen3MoeForCausalLM": _LLAMA,
}


class Model(Protocol):
    """A decoder: new tokens to logits."""

    def __call__(self, batch: ForwardBatch, attention: AttentionBackend) -> torch.Tensor:
        """Logits [L, vocab_size] of the batch's `logit_index`, in the model's dtype."""


class ModelClass(Protocol):
    """How a model is made."""

    def __call__(
        self,
        config: ModelConfig,
        checkpoint: Checkpoint,
        dtype: torch.dtype,
        device: torch.device,
        max_length: int,
        quantization: str | None = None,
    ) -> Model:
        """Load the weights.

        Raises:
            ModelError: a tensor is missing or of another shape than the config says.
        """


def check_architecture(config: ModelConfig) -> None:
    """Say early, without torch's help, that a model is not known.

    Raises:
        ModelError: the architecture is not in the registry.
    """
    if config.architecture not in ARCHITECTURES:
        raise ModelError(
            f"the architecture {config.architecture!r} is not known; "
            f"known: {', '.join(sorted(ARCHITECTURES))}",
            "serve a model of a known architecture",
        )


def load_model(
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    device: torch.device,
    max_length: int,
    quantization: str | None = None,
) -> Model:
    """Build and load the model of a checkpoint.

    Args:
        max_length: the longest sequence that will be asked, in tokens.
        quantization: of the matrices, see `keel.layers.linear`; None is exact.

    Raises:
        ModelError: see `check_architecture` and `ModelClass`.
    """
    check_architecture(checkpoint.config)
    module, name = ARCHITECTURES[checkpoint.config.architecture]
    build: ModelClass = getattr(importlib.import_module(module), name)
    return build(checkpoint.config, checkpoint, dtype, device, max_length, quantization)
