"""A checkpoint on disk: shape, tensors and tokenizer, whatever the file format."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from keel.errors import ModelError

if TYPE_CHECKING:
    import torch

    from keel.models.config import ModelConfig
    from keel.tokenizer.tokenizer import Tokenizer


class Checkpoint(Protocol):
    """What a model is loaded from.

    Tensors have the names and the layout of Hugging Face's `LlamaForCausalLM` and its relatives
    (`model.layers.0.self_attn.q_proj.weight`, rows of q and k in `rotate_half` order).
    """

    @property
    def path(self) -> Path:
        """The file or folder."""

    @property
    def config(self) -> ModelConfig:
        """The model's shape."""

    def names(self) -> Collection[str]:
        """Names of all tensors."""

    def tensor(self, name: str) -> torch.Tensor:
        """One tensor on the CPU, dequantised, in the checkpoint's float type.

        Raises:
            ModelError: there is no such tensor, or its bytes are damaged.
        """

    def tokenizer(self) -> Tokenizer:
        """The checkpoint's tokenizer.

        Raises:
            ModelError: there is none, or it is of an unknown kind.
        """


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a GGUF file or a Hugging Face folder; reads headers, not weights.

    Raises:
        ModelError: nothing is there, or it is neither, or it is damaged.
    """
    place = Path(path).expanduser()
    if place.is_dir():
        from keel.weights.folder import FolderCheckpoint

        return FolderCheckpoint(place)
    if place.is_file():
        from keel.weights.gguf import GgufCheckpoint

        return GgufCheckpoint(place)
    raise ModelError(
        f"there is no model at {str(path)!r}",
        "give a GGUF file or a Hugging Face folder; "
        "`keel models fetch smollm2-135m` gets a small one",
    )
