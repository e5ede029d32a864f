"""Llama and what shares its shape: RMSNorm, rotary attention with grouped heads, gated MLP."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from keel.attention.base import AttentionBackend
from keel.core import ForwardBatch
from keel.errors import ModelError
from keel.layers.linear import Linear, make_linear
from keel.layers.rotary import alternate_rows, rotate, rotation_table
from keel.models.config import ModelConfig
from keel.weights.checkpoint import Checkpoint


class _Weights:
    """Reads a checkpoint's tensors, checks their shapes, brings them to dtype and device."""

    def __init__(
        self, checkpoint: Checkpoint, config: ModelConfig, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._checkpoint, self._config = checkpoint, config
        self._dtype, self._device = dtype, device

    def tensor(self, name: str, *shape: int) -> torch.Tensor:
        value = self._checkpoint.tensor(name)
        if tuple(value.shape) != shape:
            raise ModelError(
                f"tensor {name!r} of {self._checkpoint.path} has shape {tuple(value.shape)}, "
                f"the config says {shape}",
                "fetch the checkpoint anew",
            )
        return value.to(device=self._device, dtype=self._dtype)

    def linear(self, prefix: str, sizes: dict[str, int], inputs: int, bias: bool = False) -> Linear:
        """Several projections of one input as a single product."""
        parts = [(f"{prefix}.{name}", size) for name, size in sizes.items()]
        weights = [self._rows(f"{name}.weight", size, inputs) for name, size in parts]
        biases = [self._rows(f"{name}.bias", size) for name, size in parts] if bias else None
        return make_linear(torch.cat(weights), None if biases is None else torch.cat(biases))

    def _rows(self, name: str, *shape: int) -> torch.Tensor:
        value = self.tensor(name, *shape)
        if ".q_proj." in name or ".k_proj." in name:
            return alternate_rows(value, self._config.head_dim)
        return value


class _Layer:
    def __init__(self, index: int, config: ModelConfig, weights: _Weights) -> None:
        prefix = f"model.layers.{index}"
        hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
        query, key = config.num_heads * dim, config.num_kv_heads * dim
        self._index = index
        self._heads, self._kv_heads, self._dim = config.num_heads, config.num_kv_heads, dim
        self._eps = config.rms_norm_eps
        self._norm1 = weights.tensor(f"{prefix}.input_layernorm.weight", hidden)
        self._norm2 = weights.tensor(f"{prefix}.post_attention_layernorm.weight", hidden)
        bias = config.attention_bias
        sizes = {"q_proj": query, "k_proj": key, "v_proj": key}
        self._qkv = weights.linear(f"{prefix}.self_attn", sizes, hidden, bias)
        self._o = weights.linear(f"{prefix}.self_attn", {"o_proj": hidden}, query, bias)
        gate_up = {"gate_proj": inner, "up_proj": inner}
        self._gate_up = weights.linear(f"{prefix}.mlp", gate_up, hidden)
        self._down = weights.linear(f"{prefix}.mlp", {"down_proj": hidden}, inner)

    def __call__(
        self,
        x: torch.Tensor,
        rotations: torch.Tensor,
        batch: ForwardBatch,
        attention: AttentionBackend,
    ) -> torch.Tensor:
        qkv = self._qkv(F.rms_norm(x, (x.shape[-1],), self._norm1, self._eps))
        qkv = qkv.view(len(x), self._heads + 2 * self._kv_heads, self._dim)
        qk = rotate(qkv[:, : -self._kv_heads], rotations)
        q, k = qk[:, : self._heads], qk[:, self._heads :]
        x = x + self._o(attention.forward(self._index, q, k, qkv[:, -self._kv_heads :], batch))
        gate, up = self._gate_up(F.rms_norm(x, (x.shape[-1],), self._norm2, self._eps)).chunk(2, -1)
        return x + self._down(F.silu(gate).mul_(up))


class Llama:
    """A `Model`."""

    def __init__(
        self,
        config: ModelConfig,
        checkpoint: Checkpoint,
        dtype: torch.dtype,
        device: torch.device,
        max_length: int,
    ) -> None:
        weights = _Weights(checkpoint, config, dtype, device)
        vocab, hidden = config.vocab_size, config.hidden_size
        self._eps = config.rms_norm_eps
        self._embedding = weights.tensor("model.embed_tokens.weight", vocab, hidden)
        self._layers = [_Layer(index, config, weights) for index in range(config.num_layers)]
        self._norm = weights.tensor("model.norm.weight", hidden)
        if config.tie_embeddings:
            self._head = make_linear(self._embedding)
        else:
            self._head = make_linear(weights.tensor("lm_head.weight", vocab, hidden))
        self._rotations = rotation_table(config.rope, config.head_dim, max_length, device)

    def __call__(self, batch: ForwardBatch, attention: AttentionBackend) -> torch.Tensor:
        x = F.embedding(batch.input_ids, self._embedding)
        rotations = self._rotations[batch.positions].unsqueeze(1)
        for layer in self._layers:
            x = layer(x, rotations, batch, attention)
        x = x.index_select(0, batch.logit_index)
        return self._head(F.rms_norm(x, (x.shape[-1],), self._norm, self._eps))
