"""What decides a model's shape, whatever file format it came in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from keel.errors import ModelError


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding.

    Args:
        theta: base of the frequencies.
        kind: `default`, `linear` or `llama3`.
        factor: how far the context was stretched.
        low_freq_factor, high_freq_factor, original_max_position: of `llama3`
            (transformers' `_compute_llama3_parameters`).
    """

    theta: float = 10000.0
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and constants of a decoder-only model.

    Args:
        architecture: the name in `architectures` of config.json; key of the model registry.
        head_dim: of one attention head; `num_heads * head_dim` need not be `hidden_size`.
        max_position: the longest sequence that the checkpoint was made for, in tokens.
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
    attention_bias: bool = False
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
            attention_bias=bool(config.get("attention_bias", False)),
            dtype=str(config.get("dtype") or config.get("torch_dtype") or "float32"),
            bos_token_id=config.get("bos_token_id"),
            eos_token_ids=_ids(generation.get("eos_token_id", config.get("eos_token_id"))),
        )
    except KeyError as error:
        raise ModelError(
            f"config.json of a {architecture} has no {error.args[0]!r}", "fetch the checkpoint anew"
        ) from error


def _rope_from_hf(config: Mapping[str, Any]) -> Rope:
    # transformers 5 writes `rope_parameters`; before, `rope_theta` and `rope_scaling`.
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = float(scaling.get("rope_theta") or config.get("rope_theta") or 10000.0)
    kind = str(scaling.get("rope_type") or scaling.get("type") or "default")
    if kind not in ("default", "linear", "llama3"):
        raise ModelError(
            f"rope scaling {kind!r} is not known; known: default, linear, llama3",
            "serve a checkpoint without it",
        )
    return Rope(
        theta=theta,
        kind=kind,
        factor=float(scaling.get("factor", 1.0)),
        low_freq_factor=float(scaling.get("low_freq_factor", 1.0)),
        high_freq_factor=float(scaling.get("high_freq_factor", 4.0)),
        original_max_position=int(scaling.get("original_max_position_embeddings", 8192)),
    )


def _ids(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(int(item) for item in value) if isinstance(value, list) else (int(value),)
