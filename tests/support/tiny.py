"""Tiny random models as Hugging Face folders: real checkpoints that load in milliseconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

VOCAB, HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 320, 64, 96, 2, 4, 2, 16
EOS = 2


def config(**changes: Any) -> dict[str, Any]:
    """config.json of the tiny model."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "dtype": "float32",
        "bos_token_id": 1,
        "eos_token_id": EOS,
        **changes,
    }


# What makes the tiny model one of another family.
FAMILIES: dict[str, dict[str, Any]] = {
    "mistral": {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "sliding_window": 24,
    },
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"},
    "qwen2 with windows": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 24,
        "max_window_layers": 1,
    },
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"},
    "qwen3_moe": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 40,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
    "qwen3_moe, not normalised, one dense layer": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_experts": 5,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 40,
        "norm_topk_prob": False,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [0],
    },
    "mixtral": {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": None,
    },
}


def weights(shape: dict[str, Any], seed: int = 0) -> dict[str, torch.Tensor]:
    """Random tensors, scaled so that logits differ clearly between tokens."""
    random = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=random) * columns**-0.5

    hidden, dim = shape["hidden_size"], shape["head_dim"]
    query = shape["num_attention_heads"] * dim
    key = shape["num_key_value_heads"] * dim
    found = {
        "model.embed_tokens.weight": torch.randn(shape["vocab_size"], hidden, generator=random),
        "model.norm.weight": 1 + 0.1 * torch.randn(hidden, generator=random),
    }
    if not shape["tie_word_embeddings"]:
        found["lm_head.weight"] = 4 * matrix(shape["vocab_size"], hidden)
    for index in range(shape["num_hidden_layers"]):
        layer = f"model.layers.{index}"
        for name, rows, columns in (
            ("self_attn.q_proj", query, hidden),
            ("self_attn.k_proj", key, hidden),
            ("self_attn.v_proj", key, hidden),
            ("self_attn.o_proj", hidden, query),
            *_mlp(shape, index),
        ):
            found[f"{layer}.{name}.weight"] = matrix(rows, columns)
            if name.startswith("self_attn") and _has_bias(shape, name):
                found[f"{layer}.{name}.bias"] = 0.1 * torch.randn(rows, generator=random)
        norms = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
        if shape["model_type"].startswith("qwen3"):
            norms |= {"self_attn.q_norm": dim, "self_attn.k_norm": dim}
        for name, size in norms.items():
            found[f"{layer}.{name}.weight"] = 1 + 0.1 * torch.randn(size, generator=random)
    return found


def _has_bias(shape: dict[str, Any], name: str) -> bool:
    if shape["model_type"] == "qwen2":
        return not name.endswith("o_proj")
    return bool(shape["attention_bias"])


def _mlp(shape: dict[str, Any], layer: int) -> list[tuple[str, int, int]]:
    """Name, rows and columns of what follows attention."""
    hidden, inner = shape["hidden_size"], shape["intermediate_size"]
    module, names, count = "mlp", ("gate_proj", "up_proj", "down_proj"), 0
    if shape["model_type"] == "mixtral":
        module, names, count = "block_sparse_moe", ("w1", "w3", "w2"), shape["num_local_experts"]
    elif shape["model_type"] == "qwen3_moe" and layer not in shape["mlp_only_layers"]:
        count, inner = shape["num_experts"], shape["moe_intermediate_size"]
    gate, up, down = names
    own = [(gate, inner, hidden), (up, inner, hidden), (down, hidden, inner)]
    if not count:
        return [(f"{module}.{name}", *sizes) for name, *sizes in own]
    each = [
        (f"{module}.experts.{expert}.{name}", *sizes)
        for expert in range(count)
        for name, *sizes in own
    ]
    return [(f"{module}.gate", count, hidden), *each]


def write(folder: Path, shards: int = 1, seed: int = 0, **changes: Any) -> Path:
    """A whole checkpoint in `folder`, its tensors dealt to `shards` files."""
    folder.mkdir(parents=True, exist_ok=True)
    shape = config(**changes)
    (folder / "config.json").write_text(json.dumps(shape))
    tensors = weights(shape, seed)
    names = sorted(tensors)
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
    else:
        index = {}
        for shard in range(shards):
            file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
            mine = {name: tensors[name] for name in names[shard::shards]}
            save_file(mine, folder / file)
            index |= dict.fromkeys(mine, file)
        (folder / "model.safetensors.index.json").write_text(
            json.dumps({"metadata": {}, "weight_map": index})
        )
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    """A byte-level tokenizer of 320 tokens: special ones, all bytes, a few merges."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    special = ["<unk>", "<s>", "</s>", "<|user|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("i", "n"), ("a", "n"), ("an", "d")]
    vocab = {token: index for index, token in enumerate(special + alphabet)}
    for left, right in merges:
        vocab[left + right] = len(vocab)
    while len(vocab) < VOCAB:
        vocab[f"<extra{len(vocab)}>"] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(one, special=True, normalized=False) for one in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    template = (
        "{% for m in messages %}<|user|>{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}<s>{% endif %}"
    )
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": template}
        )
    )
