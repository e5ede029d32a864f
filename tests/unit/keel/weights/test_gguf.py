"""GGUF files written by the `gguf` package: names, rows, types, damage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from keel.errors import ModelError
from keel.models.config import Rope
from keel.weights.checkpoint import open_checkpoint
from support import tiny as tiny_models

SHORT = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
OUTER = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}


def permute(rows: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's own (`LlamaModel.permute` of convert_hf_to_gguf.py), written out by index."""
    dim = rows.shape[0] // heads
    order = [
        head * dim + half * (dim // 2) + pair
        for head in range(heads)
        for pair in range(dim // 2)
        for half in range(2)
    ]
    return rows[order]


def short_name(name: str) -> str:
    parts = name.rsplit(".", 1)
    if parts[0] in OUTER:
        return f"{OUTER[parts[0]]}.{parts[1]}"
    _, _, index, inner = parts[0].split(".", 3)
    return f"blk.{index}.{SHORT[inner]}.{parts[1]}"


def write_gguf(
    path: Path,
    tensors: dict[str, torch.Tensor],
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    arch: str = "llama",
    **fields: Any,
) -> Path:
    shape = tiny_models.config()
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(shape["num_hidden_layers"])
    writer.add_context_length(shape["max_position_embeddings"])
    writer.add_embedding_length(shape["hidden_size"])
    writer.add_feed_forward_length(shape["intermediate_size"])
    writer.add_head_count(shape["num_attention_heads"])
    writer.add_head_count_kv(shape["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(shape["rms_norm_eps"])
    writer.add_rope_freq_base(10000.0)
    writer.add_eos_token_id(2)
    if "scaling" in fields:
        writer.add_rope_scaling_type(gguf.RopeScalingType(fields["scaling"]))
        writer.add_rope_scaling_factor(4.0)
    for name, tensor in tensors.items():
        values = tensor.numpy()
        for part, heads in (("q_proj", tiny_models.HEADS), ("k_proj", tiny_models.KV_HEADS)):
            if f".{part}." in name:
                values = permute(values, heads)
        packs = values.ndim == 2 and values.shape[1] % 32 == 0
        if packs and kind != gguf.GGMLQuantizationType.F32:
            packed = gguf.quants.quantize(values, kind)
            writer.add_tensor(short_name(name), packed, raw_dtype=kind)
        else:
            writer.add_tensor(short_name(name), np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def tensors() -> dict[str, torch.Tensor]:
    return tiny_models.weights(tiny_models.config())


def test_the_config_is_that_of_the_folder(tensors: dict[str, torch.Tensor], tmp_path: Path) -> None:
    ours = open_checkpoint(write_gguf(tmp_path / "m.gguf", tensors)).config
    theirs = open_checkpoint(tiny_models.write(tmp_path / "folder")).config
    for field in ("architecture", "vocab_size", "hidden_size", "intermediate_size", "num_layers"):
        assert getattr(ours, field) == getattr(theirs, field), field
    for field in ("num_heads", "num_kv_heads", "head_dim", "rope", "max_position", "eos_token_ids"):
        assert getattr(ours, field) == getattr(theirs, field), field
    assert ours.rms_norm_eps == pytest.approx(1e-5)
    assert not ours.tie_embeddings


def test_rows_of_q_and_k_are_put_back(tensors: dict[str, torch.Tensor], tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_gguf(tmp_path / "m.gguf", tensors))
    assert set(checkpoint.names()) == set(tensors)
    for name, tensor in tensors.items():
        assert torch.equal(checkpoint.tensor(name), tensor), name


@pytest.mark.parametrize(
    ("kind", "tolerance"),
    [("F16", 2e-3), ("BF16", 2e-2), ("Q8_0", 2e-2), ("Q4_0", 0.3), ("Q4_1", 0.2)],
)
def test_packed_tensors_are_near_what_was_packed(
    tensors: dict[str, torch.Tensor], tmp_path: Path, kind: str, tolerance: float
) -> None:
    packed = write_gguf(tmp_path / "m.gguf", tensors, gguf.GGMLQuantizationType[kind])
    checkpoint = open_checkpoint(packed)
    for name, tensor in tensors.items():
        found = checkpoint.tensor(name)
        assert found.dtype == torch.float32
        assert (found - tensor).abs().max() <= tolerance * tensor.abs().max(), name


def test_linear_rope_scaling_is_read(tensors: dict[str, torch.Tensor], tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", tensors, scaling="linear")
    assert open_checkpoint(path).config.rope == Rope(10000.0, "linear", 4.0)
    path = write_gguf(tmp_path / "y.gguf", tensors, scaling="yarn")
    with pytest.raises(ModelError, match="'yarn'"):
        open_checkpoint(path)


def test_no_output_tensor_means_tied(tensors: dict[str, torch.Tensor], tmp_path: Path) -> None:
    tied = {name: value for name, value in tensors.items() if name != "lm_head.weight"}
    assert open_checkpoint(write_gguf(tmp_path / "m.gguf", tied)).config.tie_embeddings


def test_every_cut_is_one_sentence(tensors: dict[str, torch.Tensor], tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "m.gguf", tensors).read_bytes()
    cut = tmp_path / "cut.gguf"
    for size in (0, 3, 4, 10, 24, 60, 200, 900, 2000, len(whole) // 2, len(whole) - 40):
        cut.write_bytes(whole[:size])
        with pytest.raises(ModelError) as caught:
            open_checkpoint(cut)
        assert str(cut) in caught.value.what, size
        assert caught.value.exit_code == 3


def test_other_files_and_architectures(tensors: dict[str, torch.Tensor], tmp_path: Path) -> None:
    zipped = tmp_path / "m.zip"
    zipped.write_bytes(b"PK\x03\x04 and more")
    with pytest.raises(ModelError, match="not a GGUF file"):
        open_checkpoint(zipped)
    with pytest.raises(ModelError, match="'mamba'; known in GGUF: llama"):
        open_checkpoint(write_gguf(tmp_path / "m.gguf", tensors, arch="mamba"))
    with pytest.raises(ModelError, match="no model at"):
        open_checkpoint(tmp_path / "missing.gguf")
