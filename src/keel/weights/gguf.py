"""Checkpoints in GGUF files, read and dequantised by the `gguf` package."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

from keel.errors import ModelError
from keel.models.config import Experts, ModelConfig, Rope, yarn_attention_factor

if TYPE_CHECKING:
    import torch

    from keel.tokenizer.tokenizer import Tokenizer

# general.architecture -> the registry's name.
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3moe": "Qwen3MoeForCausalLM",
}

_OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# All experts of a layer in one tensor, [experts, rows, columns].
_STACKED = {"ffn_gate_exps": "gate_proj", "ffn_up_exps": "up_proj", "ffn_down_exps": "down_proj"}
_BLOCK = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
# Known tensors without a name of their own in Hugging Face's layout.
_ASIDE = {"rope_freqs.weight"}


class _Reader(GGUFReader):
    """GGUFReader over a plain array: slicing a memmap costs ten times as much, and a vocabulary
    is a hundred thousand slices."""

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, np.asarray(value) if name == "data" else value)


class GgufCheckpoint:
    """A `Checkpoint` in one GGUF file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reader = _open(path)
        self._config = _config(self._reader, path)
        self._permuted = self._config.architecture in ("LlamaForCausalLM", "MixtralForCausalLM")
        # A tensor and, where it stacks experts, which of them.
        self._tensors: dict[str, tuple[Any, int | None]] = {}
        for tensor in self._reader.tensors:
            if tensor.name in _ASIDE:
                continue
            if names := _expert_names(tensor.name, int(tensor.shape[-1])):
                self._tensors |= {name: (tensor, index) for index, name in enumerate(names)}
            else:
                self._tensors[_hf_name(tensor.name, path)] = (tensor, None)

    @property
    def path(self) -> Path:
        return self._path

    @property
    def config(self) -> ModelConfig:
        return self._config

    def names(self) -> Collection[str]:
        return self._tensors.keys()

    def tensor(self, name: str) -> torch.Tensor:
        import torch

        if name not in self._tensors:
            raise ModelError(f"{self._path} has no tensor {name!r}", "fetch the file anew")
        source, expert = self._tensors[name]
        data = source.data if expert is None else source.data[expert]
        try:
            values = dequantize(data, source.tensor_type)
        except NotImplementedError as error:
            raise ModelError(
                f"tensor {name!r} of {self._path} is of type {source.tensor_type.name}, "
                "which the gguf package does not dequantise",
                "serve a file in F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K or Q6_K",
            ) from error
        shape = tuple(int(size) for size in reversed(source.shape))[expert is not None :]
        result = torch.from_numpy(np.array(values, dtype=np.float32)).reshape(shape)
        kind = name.split(".")[-2]
        # Only Llama's converter permutes them.
        if kind in ("q_proj", "k_proj") and self._permuted:
            heads = self._config.num_heads if kind == "q_proj" else self._config.num_kv_heads
            result = _rotate_half_rows(result, heads)
        return result

    def tokenizer(self) -> Tokenizer:
        from keel.tokenizer.from_gguf import tokenizer_from_gguf

        return tokenizer_from_gguf(metadata(self._reader), self._path)


def _open(path: Path) -> GGUFReader:
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise ModelError(
            f"{path} is not a GGUF file: it begins with {magic!r}, not b'GGUF'",
            "give a .gguf file, or the folder of a Hugging Face checkpoint",
        )
    try:
        return _Reader(path)
    except (ValueError, IndexError, KeyError, OverflowError) as error:
        raise ModelError(
            f"{path} ({path.stat().st_size} bytes) is truncated or damaged: {error}",
            "fetch the file anew",
        ) from error


def metadata(reader: GGUFReader) -> dict[str, Any]:
    """All key-value pairs of a GGUF file, as Python values."""
    return {name: field.contents() for name, field in reader.fields.items()}


def _config(reader: GGUFReader, path: Path) -> ModelConfig:
    def read(key: str, default: Any = None) -> Any:
        field = reader.get_field(key)
        if field is not None:
            return field.contents()
        if default is None:
            raise ModelError(f"{path} has no {key!r} in its metadata", "fetch the file anew")
        return default

    arch = read("general.architecture")
    if arch not in ARCHITECTURES:
        raise ModelError(
            f"{path} is of architecture {arch!r}; known in GGUF: {', '.join(ARCHITECTURES)}",
            "serve a model of a known architecture",
        )
    heads = int(read(f"{arch}.attention.head_count"))
    hidden = int(read(f"{arch}.embedding_length"))
    head_dim = int(read(f"{arch}.attention.key_length", hidden // heads))
    length = int(read(f"{arch}.context_length"))
    names = {tensor.name: tensor for tensor in reader.tensors}
    if "token_embd.weight" not in names:
        raise ModelError(f"{path} has no token embedding", "give a whole model, not one shard")
    ends = [
        int(read(f"tokenizer.ggml.{key}_token_id"))
        for key in ("eos", "eot")
        if reader.get_field(f"tokenizer.ggml.{key}_token_id") is not None
    ]
    bos = read("tokenizer.ggml.bos_token_id", -1)
    inner = int(read(f"{arch}.feed_forward_length", 0))
    experts = None
    if count := int(read(f"{arch}.expert_count", 0)):
        used = int(read(f"{arch}.expert_used_count"))
        experts = Experts(count, used, int(read(f"{arch}.expert_feed_forward_length", inner)))
    return ModelConfig(
        architecture="MixtralForCausalLM" if arch == "llama" and experts else ARCHITECTURES[arch],
        vocab_size=int(names["token_embd.weight"].shape[1]),
        hidden_size=hidden,
        intermediate_size=inner,
        num_layers=int(read(f"{arch}.block_count")),
        num_heads=heads,
        num_kv_heads=int(read(f"{arch}.attention.head_count_kv", heads)),
        head_dim=head_dim,
        rms_norm_eps=float(read(f"{arch}.attention.layer_norm_rms_epsilon")),
        rope=_rope(reader, arch, head_dim, length, path),
        max_position=length,
        tie_embeddings="output.weight" not in names,
        qkv_bias="blk.0.attn_q.bias" in names,
        o_bias="blk.0.attn_output.bias" in names,
        qk_norm="blk.0.attn_q_norm.weight" in names,
        experts=experts,
        bos_token_id=None if bos == -1 else int(bos),
        eos_token_ids=tuple(dict.fromkeys(ends)),
    )


def _rope(reader: GGUFReader, arch: str, head_dim: int, length: int, path: Path) -> Rope:
    def read(key: str, default: Any) -> Any:
        field = reader.get_field(f"{arch}.rope.{key}")
        return default if field is None else field.contents()

    theta = float(read("freq_base", 10000.0))
    if int(read("dimension_count", head_dim)) != head_dim:
        raise ModelError(f"{path} rotates only a part of each head", "serve another model")
    for tensor in reader.tensors:
        if tensor.name == "rope_freqs.weight":
            # Llama 3.1 and later: what its scaling comes to, as numbers.
            return Rope(theta=theta, kind="divided", divisors=tuple(map(float, tensor.data)))
    kind, factor = str(read("scaling.type", "none")), float(read("scaling.factor", 1.0))
    if kind in ("none", ""):
        return Rope(theta=theta)
    if kind == "linear":
        return Rope(theta=theta, kind="linear", factor=factor)
    if kind == "yarn":
        return Rope(
            theta=theta,
            kind="yarn",
            factor=factor,
            original_max_position=int(read("scaling.original_context_length", 0)) or length,
            attention_factor=yarn_attention_factor(factor, {})
            * float(read("scaling.attn_factor", 1.0)),
        )
    raise ModelError(f"rope scaling {kind!r} of {path} is not known", "serve another model")


def _expert_names(name: str, count: int) -> list[str]:
    """Hugging Face's names of the experts that a tensor stacks; none where it stacks none."""
    found = _BLOCK.fullmatch(name)
    if not found or found[2] not in _STACKED:
        return []
    prefix = f"model.layers.{found[1]}.mlp.experts"
    return [f"{prefix}.{index}.{_STACKED[found[2]]}.{found[3]}" for index in range(count)]


def _hf_name(name: str, path: Path) -> str:
    if name in _OUTER:
        return _OUTER[name]
    found = _BLOCK.fullmatch(name)
    if found and found[2] in _INNER:
        return f"model.layers.{found[1]}.{_INNER[found[2]]}.{found[3]}"
    raise ModelError(
        f"{path} has a tensor that no known model has: {name!r}",
        "serve a model of a known architecture",
    )


def _rotate_half_rows(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Undo llama.cpp's `permute` (convert_hf_to_gguf.py), which puts the two halves of each head's
    rows alternately: GGUF row `2i + j` of a head is Hugging Face's row `j * head_dim / 2 + i`."""
    head_dim = rows.shape[0] // heads
    pairs = rows.reshape(heads, head_dim // 2, 2, *rows.shape[1:])
    return pairs.transpose(1, 2).reshape(rows.shape)
