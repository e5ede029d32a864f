"""What decides a model's shape, whatever file format it came in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from keel.errors import ModelError


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding.

    Args:
        theta: base of the frequencies.
        kind: `default`, `linear`, `llama3`, `yarn` or `divided`.
        factor: how far the context was stretched.
        original_max_position: the context before, of `llama3` and `yarn`.
        low_freq_factor, high_freq_factor: of `llama3` (transformers'
            `_compute_llama3_parameters`).
        beta_fast, beta_slow, truncate: of `yarn`: rotations within the original context from which
            on, and up to which, a pair keeps its frequency or has it divided
            (`_compute_yarn_parameters`); whether the pairs between are counted whole.
        attention_factor: of `yarn`: multiplies q and k.
        divisors: of `divided`: of each pair's frequency (GGUF's `rope_freqs`).
    """

    theta: float = 10000.0
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0
    divisors: tuple[float, ...] = ()


@dataclass(frozen=True)
class Experts:
    """A mixture of experts in the place of the MLP.

    Args:
        count: experts of one layer.
        per_token: how many of them compute each token.
        inner: their intermediate size.
        normalise: the chosen experts' weights are made to sum to 1.
        dense_layers: layers that have a plain MLP instead.
        module: where their tensors lie in a layer: `mlp` or `block_sparse_moe`.
    """

    count: int
    per_token: int
    inner: int
    normalise: bool = True
    dense_layers: frozenset[int] = frozenset()
    module: str = "mlp"


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and constants of a decoder-only model.

    Args:
        architecture: the name in `architectures` of config.json; key of the model registry.
        head_dim: of one attention head; `num_heads * head_dim` need not be `hidden_size`.
        max_position: the longest sequence that the checkpoint was made for, in tokens.
        qkv_bias, o_bias: whether these projections add one.
        qk_norm: each head of q and k passes an RMSNorm before it is rotated.
        windows: of each layer: how many tokens a token sees, itself included, or None for all of
            them; empty where no layer has a window.
        experts: None for a plain MLP in every layer.
        dtype: of the checkpoint's tensors (`float32` for GGUF, which is dequantised).
        eos_token_ids: tokens that end an answer.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: Rope
    max_position: int
    tie_embeddings: bool
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: bool = False
    windows: tuple[int | None, ...] = ()
    experts: Experts | None = None
    dtype: str = "float32"
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()


def config_from_hf(config: Mapping[str, Any], generation: Mapping[str, Any]) -> ModelConfig:
    """A model's shape from config.json and generation_config.json.

    Raises:
        ModelError: a field is missing, or means something that the engine does not do.
    """
    names = config.get("architectures") or []
    if not names:
        raise ModelError("config.json names no architecture", "add `architectures` to config.json")
    architecture = str(names[0])
    try:
        heads = int(config["num_attention_heads"])
        hidden = int(config["hidden_size"])
        return ModelConfig(
            architecture=architecture,
            vocab_size=int(config["vocab_size"]),
            hidden_size=hidden,
            intermediate_size=int(config["intermediate_size"]),
            num_layers=int(config["num_hidden_layers"]),
            num_heads=heads,
            num_kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or hidden // heads),
            rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            rope=_rope_from_hf(config),
            max_position=int(config.get("max_position_embeddings", 2048)),
            tie_embeddings=bool(config.get("tie_word_embeddings", False)),
            dtype=str(config.get("dtype") or config.get("torch_dtype") or "float32"),
            bos_token_id=config.get("bos_token_id"),
            eos_token_ids=_ids(generation.get("eos_token_id", config.get("eos_token_id"))),
            **_family(architecture, config),
        )
    except KeyError as error:
        raise ModelError(
            f"config.json of a {architecture} has no {error.args[0]!r}", "fetch the checkpoint anew"
        ) from error


def _family(architecture: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """What families of models have beside Llama's shape; their defaults are transformers' own."""
    if (act := config.get("hidden_act", "silu")) != "silu" or config.get("mlp_bias"):
        raise ModelError(
            f"an MLP with {'a bias' if act == 'silu' else act} is not known; known: silu, no bias",
            "serve another model",
        )
    bias = bool(config.get("attention_bias", False))
    found: dict[str, Any] = {"qkv_bias": bias, "o_bias": bias, "windows": _windows(config)}
    match architecture:
        case "Qwen2ForCausalLM":
            found |= {"qkv_bias": True, "o_bias": False}
        case "Qwen3ForCausalLM" | "Qwen3MoeForCausalLM":
            found["qk_norm"] = True
    match architecture:
        case "Qwen3MoeForCausalLM":
            found["experts"] = _qwen_experts(config)
        case "MixtralForCausalLM":
            found["experts"] = Experts(
                count=int(config["num_local_experts"]),
                per_token=int(config["num_experts_per_tok"]),
                inner=int(config["intermediate_size"]),
                module="block_sparse_moe",
            )
    return found


def _qwen_experts(config: Mapping[str, Any]) -> Experts:
    layers = range(int(config["num_hidden_layers"]))
    step = int(config.get("decoder_sparse_step", 1))
    plain = {layer for layer in layers if (layer + 1) % step} | {*config.get("mlp_only_layers", ())}
    return Experts(
        count=int(config["num_experts"]),
        per_token=int(config["num_experts_per_tok"]),
        inner=int(config["moe_intermediate_size"]),
        normalise=bool(config.get("norm_topk_prob", False)),
        dense_layers=frozenset(plain),
    )


def _windows(config: Mapping[str, Any]) -> tuple[int | None, ...]:
    """Each layer's window: by `layer_types`, else by Qwen's `max_window_layers`, else the same."""
    window, layers = config.get("sliding_window"), int(config["num_hidden_layers"])
    if not window or not config.get("use_sliding_window", True):
        return ()
    first = int(config.get("max_window_layers", 0)) if "use_sliding_window" in config else 0
    kinds = config.get("layer_types") or [
        "sliding_attention" if layer >= first else "full_attention" for layer in range(layers)
    ]
    if len(kinds) != layers or not {*kinds} <= {"sliding_attention", "full_attention"}:
        raise ModelError(
            f"config.json names {len(kinds)} layer_types of {layers}: {sorted({*kinds})}",
            "serve a model whose layers are all of full_attention or sliding_attention",
        )
    return tuple(int(window) if kind == "sliding_attention" else None for kind in kinds)


def _rope_from_hf(config: Mapping[str, Any]) -> Rope:
    # transformers 5 writes `rope_parameters`; before, `rope_theta` and `rope_scaling`.
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = float(scaling.get("rope_theta") or config.get("rope_theta") or 10000.0)
    kind = str(scaling.get("rope_type") or scaling.get("type") or "default")
    if kind not in ("default", "linear", "llama3", "yarn"):
        # `dynamic` moves all frequencies as a sequence grows, so that cached keys would be wrong.
        raise ModelError(
            f"rope scaling {kind!r} is not served; known: default, linear, llama3, yarn",
            "serve a checkpoint without it",
        )
    original = scaling.get("original_max_position_embeddings")
    if original is None:
        original = config.get("max_position_embeddings", 2048) if kind == "yarn" else 8192
    rope = Rope(
        theta=theta,
        kind=kind,
        factor=float(scaling.get("factor", 1.0)),
        low_freq_factor=float(scaling.get("low_freq_factor", 1.0)),
        high_freq_factor=float(scaling.get("high_freq_factor", 4.0)),
        original_max_position=int(original),
    )
    if kind != "yarn":
        return rope
    return replace(
        rope,
        beta_fast=float(scaling.get("beta_fast") or 32.0),
        beta_slow=float(scaling.get("beta_slow") or 1.0),
        truncate=bool(scaling.get("truncate", True)),
        attention_factor=yarn_attention_factor(rope.factor, scaling),
    )


def yarn_attention_factor(factor: float, scaling: Mapping[str, Any]) -> float:
    """As transformers' `_compute_yarn_parameters`: given, or 0.1 ln(factor) + 1 (Peng 2023)."""

    def scale(times: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * times * math.log(factor) + 1.0

    if (given := scaling.get("attention_factor")) is not None:
        return float(given)
    if (one := scaling.get("mscale")) and (other := scaling.get("mscale_all_dim")):
        return scale(float(one)) / scale(float(other))
    return scale(1.0)


def _ids(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(int(item) for item in value) if isinstance(value, list) else (int(value),)
