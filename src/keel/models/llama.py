"""Llama and what shares its shape: RMSNorm, rotary attention with grouped heads, gated MLP.

Mistral and Qwen differ from it by what `ModelConfig` says (biases, a norm of each head, windows,
experts), so they are this class too.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from keel.attention.base import AttentionBackend
from keel.core import ForwardBatch
from keel.layers.linear import make_linear
from keel.layers.mlp import ExpertMLP, GatedMLP
from keel.layers.rotary import rotate, rotation_table
from keel.models.config import Experts, ModelConfig
from keel.models.weights import Weights
from keel.weights.checkpoint import Checkpoint

# Names of an expert's projections (gate, up, down) by the module that they lie in.
_EXPERT_NAMES = {
    "mlp": ("gate_proj", "up_proj", "down_proj"),
    "block_sparse_moe": ("w1", "w3", "w2"),
}


def _gated(
    weights: Weights,
    prefix: str,
    inner: int,
    hidden: int,
    names: tuple[str, str, str] = _EXPERT_NAMES["mlp"],
) -> GatedMLP:
    gate, up, down = names
    return GatedMLP(
        weights.linear(prefix, {gate: inner, up: inner}, hidden),
        weights.linear(prefix, {down: hidden}, inner),
    )


def _mlp(index: int, config: ModelConfig, weights: Weights) -> GatedMLP | ExpertMLP:
    prefix, experts = f"model.layers.{index}", config.experts
    if experts is None or index in experts.dense_layers:
        return _gated(weights, f"{prefix}.mlp", config.intermediate_size, config.hidden_size)
    return _experts(weights, f"{prefix}.{experts.module}", experts, config.hidden_size)


def _experts(weights: Weights, prefix: str, experts: Experts, hidden: int) -> ExpertMLP:
    names = _EXPERT_NAMES[experts.module]
    return ExpertMLP(
        make_linear(weights.tensor(f"{prefix}.gate.weight", experts.count, hidden)),
        [
            _gated(weights, f"{prefix}.experts.{expert}", experts.inner, hidden, names)
            for expert in range(experts.count)
        ],
        experts.per_token,
        experts.normalise,
    )


class _Layer:
    def __init__(self, index: int, config: ModelConfig, weights: Weights) -> None:
        prefix = f"model.layers.{index}"
        hidden, dim = config.hidden_size, config.head_dim
        query, key = config.num_heads * dim, config.num_kv_heads * dim
        self._index = index
        self._heads, self._kv_heads, self._dim = config.num_heads, config.num_kv_heads, dim
        self._eps = config.rms_norm_eps
        self._norm1 = weights.tensor(f"{prefix}.input_layernorm.weight", hidden)
        self._norm2 = weights.tensor(f"{prefix}.post_attention_layernorm.weight", hidden)
        attention = f"{prefix}.self_attn"
        sizes = {"q_proj": query, "k_proj": key, "v_proj": key}
        self._qkv = weights.linear(attention, sizes, hidden, config.qkv_bias)
        self._o = weights.linear(attention, {"o_proj": hidden}, query, config.o_bias)
        self._head_norm: torch.Tensor | None = None
        if config.qk_norm:
            # [heads + kv_heads, dim]: q's weight for the query heads, k's for the key heads.
            norms = [weights.tensor(f"{attention}.{name}_norm.weight", dim) for name in "qk"]
            counts = torch.tensor([self._heads, self._kv_heads], device=norms[0].device)
            self._head_norm = torch.stack(norms).repeat_interleave(counts, 0)
        self._mlp = _mlp(index, config, weights)

    def __call__(
        self,
        x: torch.Tensor,
        rotations: torch.Tensor,
        batch: ForwardBatch,
        attention: AttentionBackend,
    ) -> torch.Tensor:
        qkv = self._qkv(F.rms_norm(x, (x.shape[-1],), self._norm1, self._eps))
        qkv = qkv.view(len(x), self._heads + 2 * self._kv_heads, self._dim)
        qk = qkv[:, : -self._kv_heads]
        if self._head_norm is not None:
            qk = F.rms_norm(qk, (self._dim,), eps=self._eps) * self._head_norm
        qk = rotate(qk, rotations)
        q, k = qk[:, : self._heads], qk[:, self._heads :]
        x = x + self._o(attention.forward(self._index, q, k, qkv[:, -self._kv_heads :], batch))
        return x + self._mlp(F.rms_norm(x, (x.shape[-1],), self._norm2, self._eps))


class Llama:
    """A `Model`."""

    def __init__(
        self,
        config: ModelConfig,
        checkpoint: Checkpoint,
        dtype: torch.dtype,
        device: torch.device,
        max_length: int,
        quantization: str | None = None,
    ) -> None:
        weights = Weights(checkpoint, config, dtype, device, quantization)
        vocab, hidden = config.vocab_size, config.hidden_size
        self._eps = config.rms_norm_eps
        self._embedding = weights.tensor("model.embed_tokens.weight", vocab, hidden)
        self._layers = [_Layer(index, config, weights) for index in range(config.num_layers)]
        self._norm = weights.tensor("model.norm.weight", hidden)
        if config.tie_embeddings:
            self._head = make_linear(self._embedding, None, quantization)
        else:
            head = weights.tensor("lm_head.weight", vocab, hidden)
            self._head = make_linear(head, None, quantization)
        self._rotations = rotation_table(config.rope, config.head_dim, max_length, device)

    def __call__(self, batch: ForwardBatch, attention: AttentionBackend) -> torch.Tensor:
        x = F.embedding(batch.input_ids, self._embedding)
        rotations = self._rotations[batch.positions].unsqueeze(1)
        for layer in self._layers:
            x = layer(x, rotations, batch, attention)
        x = x.index_select(0, batch.logit_index)
        return self._head(F.rms_norm(x, (x.shape[-1],), self._norm, self._eps))
