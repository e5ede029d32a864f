"""GGUF files written by the `gguf` package: names, rows, types, damage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from keel.errors import ModelError
from keel.layers.rotary import frequencies
from keel.models.config import Experts, Rope
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
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate": "ffn_gate_inp",
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


def _half(block: np.ndarray, at: int) -> float:
    return float(block[at : at + 2].view(np.float16)[0])


def _scale_and_min(scales: np.ndarray, j: int) -> tuple[int, int]:
    """`get_scale_min_k4`: eight pairs of six bits in twelve bytes."""
    if j < 4:
        return int(scales[j]) & 63, int(scales[j + 4]) & 63
    low, high = int(scales[j + 4]), (int(scales[j - 4]) >> 6, int(scales[j]) >> 6)
    return (low & 15) | (high[0] << 4), (low >> 4) | (high[1] << 4)


def _q4_k(block: np.ndarray) -> np.ndarray:
    return _k_with_mins(block, high=None, low=block[16:])


def _q5_k(block: np.ndarray) -> np.ndarray:
    return _k_with_mins(block, high=block[16:48], low=block[48:])


def _k_with_mins(block: np.ndarray, high: np.ndarray | None, low: np.ndarray) -> np.ndarray:
    values = np.empty(256)
    for i in range(256):
        part = i // 32
        scale, least = _scale_and_min(block[4:16], part)
        q = int(low[part // 2 * 32 + i % 32]) >> (4 * (part % 2)) & 15
        if high is not None:
            q |= (int(high[i % 32]) >> part & 1) << 4
        values[i] = _half(block, 0) * scale * q - _half(block, 2) * least
    return values


def _q6_k(block: np.ndarray) -> np.ndarray:
    low, high, scales = block[:128], block[128:192], block[192:208].view(np.int8)
    values = np.empty(256)
    for i in range(256):
        half, quarter, at = i // 128, i % 128 // 32, i % 32
        q = int(low[half * 64 + quarter % 2 * 32 + at]) >> (4 * (quarter // 2)) & 15
        q |= (int(high[half * 32 + at]) >> (2 * quarter) & 3) << 4
        values[i] = _half(block, 208) * int(scales[i // 16]) * (q - 32)
    return values


K_QUANTS = {"Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k}


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
    shape = tiny_models.config(**fields.get("shape", {}))
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
        writer.add_rope_scaling_orig_ctx_len(64)
    writer.add_key_length(shape["head_dim"])
    if "num_experts" in shape:
        writer.add_expert_count(shape["num_experts"])
        writer.add_expert_used_count(shape["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(shape["moe_intermediate_size"])
        tensors = stacked(tensors, shape["num_experts"])
    if "divisors" in fields:
        writer.add_tensor("rope_freqs.weight", np.array(fields["divisors"], dtype=np.float32))
    for name, tensor in tensors.items():
        values = tensor.numpy()
        for part, heads in (("q_proj", tiny_models.HEADS), ("k_proj", tiny_models.KV_HEADS)):
            if f".{part}." in name and arch == "llama":
                values = permute(values, heads)
        if ".experts." in name:
            _, _, index, _, _, part, _ = name.split(".")
            short = f"blk.{index}.ffn_{part.removesuffix('_proj')}_exps.weight"
            packed = gguf.quants.quantize(values, kind)
            writer.add_tensor(short, packed, raw_dtype=kind)
            continue
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


def stacked(tensors: dict[str, torch.Tensor], count: int) -> dict[str, torch.Tensor]:
    """Experts of a layer as one tensor, under the name of the first without its number."""
    found = {name: tensor for name, tensor in tensors.items() if ".experts." not in name}
    for name in tensors:
        if ".experts.0." in name:
            each = [tensors[name.replace("experts.0.", f"experts.{one}.")] for one in range(count)]
            found[name.replace("experts.0.", "experts.")] = torch.stack(each)
    return found


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


@pytest.mark.parametrize(("arch", "family"), [("qwen2", "qwen2"), ("qwen3", "qwen3")])
def test_other_families_are_those_of_the_folder(arch: str, family: str, tmp_path: Path) -> None:
    shape = tiny_models.FAMILIES[family]
    tensors = tiny_models.weights(tiny_models.config(**shape))
    ours = open_checkpoint(write_gguf(tmp_path / "m.gguf", tensors, arch=arch, shape=shape))
    theirs = open_checkpoint(tiny_models.write(tmp_path / "folder", **shape)).config
    for field in ("architecture", "qkv_bias", "o_bias", "qk_norm", "head_dim", "experts"):
        assert getattr(ours.config, field) == getattr(theirs, field), field
    assert set(ours.names()) == set(tensors)
    for name, tensor in tensors.items():
        assert torch.equal(ours.tensor(name), tensor), name


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_experts_are_taken_out_of_their_stack(kind: str, tmp_path: Path) -> None:
    shape = {**tiny_models.FAMILIES["qwen3_moe"], "moe_intermediate_size": 32}
    tensors = tiny_models.weights(tiny_models.config(**shape))
    packed = gguf.GGMLQuantizationType[kind]
    path = write_gguf(tmp_path / "m.gguf", tensors, packed, arch="qwen3moe", shape=shape)
    ours = open_checkpoint(path)
    assert ours.config.experts == Experts(count=6, per_token=2, inner=32)
    assert set(ours.names()) == set(tensors)
    for name, tensor in tensors.items():
        error = (ours.tensor(name) - tensor).abs().max()
        assert error <= (0 if kind == "F32" else 2e-2 * tensor.abs().max()), name


def test_rope_scaling_is_read(tensors: dict[str, torch.Tensor], tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", tensors, scaling="linear")
    assert open_checkpoint(path).config.rope == Rope(10000.0, "linear", 4.0)
    path = write_gguf(tmp_path / "y.gguf", tensors, scaling="yarn")
    found = open_checkpoint(path).config.rope
    assert (found.kind, found.factor, found.original_max_position) == ("yarn", 4.0, 64)
    assert found.attention_factor == pytest.approx(1.1386, abs=1e-4)
    path = write_gguf(tmp_path / "l.gguf", tensors, scaling="longrope")
    with pytest.raises(ModelError, match="'longrope'"):
        open_checkpoint(path)


def test_divided_frequencies_are_those_of_llama3(
    tensors: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    """llama.cpp's converter writes Llama 3's scaling as one divisor a pair."""
    llama3 = Rope(10000.0, "llama3", 8.0, original_max_position=64)
    wanted = frequencies(llama3, tiny_models.HEAD_DIM)
    divisors = frequencies(Rope(10000.0), tiny_models.HEAD_DIM) / wanted
    path = write_gguf(tmp_path / "m.gguf", tensors, divisors=divisors.tolist())
    rope = open_checkpoint(path).config.rope
    torch.testing.assert_close(frequencies(rope, tiny_models.HEAD_DIM), wanted)


@pytest.mark.parametrize(
    ("kind", "size", "scale_at"),
    [("Q4_K", 144, (0, 2)), ("Q6_K", 210, (208,)), ("Q5_K", 176, (0, 2))],
)
def test_k_quants_are_dequantised_as_the_format_says(
    kind: str, size: int, scale_at: tuple[int, ...], tmp_path: Path
) -> None:
    """Random blocks of 256, against ggml's definition written out by index (ggml-quants.c)."""
    random = np.random.default_rng(5)
    blocks = random.integers(0, 256, (320 * 64 // 256, size), dtype=np.uint8)
    for at in scale_at:
        scale = random.uniform(0.01, 0.1, len(blocks)).astype(np.float16)
        blocks[:, at : at + 2] = scale[:, None].view(np.uint8)
    expected = np.stack([K_QUANTS[kind](block) for block in blocks]).reshape(80, 256)
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in {"block_count": 0, "context_length": 64, "embedding_length": 256}.items():
        writer.add_uint32(f"llama.{name}", value)
    writer.add_head_count(4)
    writer.add_layer_norm_rms_eps(1e-5)
    raw = blocks.reshape(80, size)
    writer.add_tensor("token_embd.weight", raw, raw_dtype=gguf.GGMLQuantizationType[kind])
    for step in ("header_to_file", "kv_data_to_file", "tensors_to_file"):
        getattr(writer, f"write_{step}")()
    writer.close()
    found = open_checkpoint(path).tensor("model.embed_tokens.weight")
    torch.testing.assert_close(found, torch.from_numpy(expected.astype(np.float32)))


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
