"""Hugging Face transformers over a GGUF that is dequantised to float32: the oracle for tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import gguf
import numpy as np
import torch

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerBase

_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def _unpermute(weight: np.ndarray, heads: int) -> np.ndarray:
    """Undo the row order that GGUF's converter gives q and k (interleaved pairs to halves)."""
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


@lru_cache(maxsize=1)
def load(path: Path) -> tuple[LlamaForCausalLM, PreTrainedTokenizerBase]:
    """The checkpoint at `path` as transformers' own float32 model and tokenizer."""
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    reader = gguf.GGUFReader(path)

    def field(name: str) -> float:
        return reader.fields[f"llama.{name}"].contents()

    heads, kv_heads = int(field("attention.head_count")), int(field("attention.head_count_kv"))
    weights: dict[str, torch.Tensor] = {}
    for tensor in reader.tensors:
        value = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if tensor.name.startswith("blk."):
            _, layer, part, kind = tensor.name.split(".")
            if part in ("attn_q", "attn_k"):
                value = _unpermute(value, heads if part == "attn_q" else kv_heads)
            name = f"model.layers.{layer}.{_BLOCK_NAMES[part]}.{kind}"
        else:
            name = _NAMES[tensor.name]
        weights[name] = torch.from_numpy(np.ascontiguousarray(value))
    config = LlamaConfig(
        vocab_size=weights["model.embed_tokens.weight"].shape[0],
        hidden_size=int(field("embedding_length")),
        intermediate_size=int(field("feed_forward_length")),
        num_hidden_layers=int(field("block_count")),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=int(field("context_length")),
        rms_norm_eps=float(field("attention.layer_norm_rms_epsilon")),
        rope_theta=float(field("rope.freq_base")),
        tie_word_embeddings="lm_head.weight" not in weights,
        attn_implementation="sdpa",
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    missing, unexpected = model.load_state_dict(weights, strict=False, assign=True)
    assert not unexpected, unexpected
    assert set(missing) <= {"lm_head.weight"}, missing
    model.tie_weights()
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    return model.eval(), tokenizer


def greedy(path: Path, prompt_ids: Sequence[int], max_new_tokens: int) -> list[int]:
    """The tokens that transformers generates greedily after `prompt_ids`, without the prompt."""
    model, _ = load(path)
    with torch.inference_mode():
        output = model.generate(
            torch.tensor([list(prompt_ids)]), max_new_tokens=max_new_tokens, do_sample=False
        )
    return output[0, len(prompt_ids) :].tolist()


def chat_ids(path: Path, messages: Sequence[Mapping[str, str]]) -> list[int]:
    """`messages` through the checkpoint's chat template, as token ids."""
    _, tokenizer = load(path)
    text = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])
