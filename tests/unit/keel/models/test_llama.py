"""Logits of small random checkpoints against Hugging Face transformers.

Tolerance: 1e-4 on logits of magnitude 10, float32; both sum in another order.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from keel.attention.torch_sdpa import TorchAttention
from keel.cache.pool import KVLayout, KVPool
from keel.core import ForwardBatch
from keel.errors import ModelError
from keel.models.registry import load_model
from keel.weights.checkpoint import open_checkpoint
from support import tiny as tiny_models

CPU = torch.device("cpu")
SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "tied": {"tie_word_embeddings": True},
    "bias": {"attention_bias": True},
    "one key head": {"num_key_value_heads": 1},
    "as many key heads": {"num_key_value_heads": 4},
    "wide heads": {"head_dim": 32},
    "linear rope": {
        "rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0}
    },
    "llama3 rope": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "yarn rope": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 500.0,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "yarn rope, all told": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
            "mscale": 0.7,
            "mscale_all_dim": 1.3,
            "truncate": False,
            "original_max_position_embeddings": 64,
        }
    },
    **tiny_models.FAMILIES,
}


class Harness:
    """A model over a pool, without a scheduler."""

    def __init__(self, folder: Path) -> None:
        checkpoint = open_checkpoint(folder)
        config = checkpoint.config
        layout = KVLayout(config.num_layers, config.num_kv_heads, config.head_dim, torch.float32)
        self.model = load_model(checkpoint, torch.float32, CPU, 512)
        self.attention = TorchAttention(KVPool(layout, 1000, CPU), config.num_heads, config.windows)
        # Rows with runs and rows without: both ways of reading the pool.
        self.table = torch.zeros(4, 200, dtype=torch.int32)
        self.table[0] = torch.arange(1, 201)
        shuffled = torch.from_numpy(np.random.default_rng(0).permutation(np.arange(201, 801)))
        self.table[1:] = shuffled.reshape(3, 200)

    def logits(self, parts: list[tuple[int, list[int], int]]) -> Any:
        """Of the last token of each (row, new tokens, computed before)."""
        parts = sorted(parts, key=lambda part: not (len(part[1]) == 1 and part[2] > 0))
        positions = [np.arange(start, start + len(ids)) for _, ids, start in parts]
        slots = [self.table[row, p].long() for (row, _, _), p in zip(parts, positions, strict=True)]
        lens = np.array([len(ids) for _, ids, _ in parts])
        batch = ForwardBatch(
            input_ids=torch.tensor([token for _, ids, _ in parts for token in ids]),
            positions=torch.from_numpy(np.concatenate(positions)),
            out_slots=torch.cat(slots),
            query_lens=lens,
            seq_lens=lens + np.array([start for _, _, start in parts]),
            num_decodes=sum(len(ids) == 1 and start > 0 for _, ids, start in parts),
            rows=np.array([row for row, _, _ in parts]),
            table=self.table,
            logit_index=torch.from_numpy(np.cumsum(lens) - 1),
        )
        with torch.inference_mode():
            batch.plan = self.attention.plan(batch)
            return self.model(batch, self.attention)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_logits_equal_transformers_whole_in_chunks_and_one_by_one(
    shape: str, tmp_path: Path
) -> None:
    folder = tiny_models.write(tmp_path / "model", shards=3, **SHAPES[shape])
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = np.random.default_rng(1).integers(4, tiny_models.VOCAB, 90).tolist()
    with torch.inference_mode():
        expected = theirs(torch.tensor([ids])).logits[0]

    def close(ours: Any, position: int) -> None:
        torch.testing.assert_close(ours, expected[position], atol=1e-4, rtol=1e-4)

    harness = Harness(folder)
    close(harness.logits([(0, ids, 0)])[0], -1)
    for row in (1, 0):
        close(harness.logits([(row, ids[:40], 0)])[0], 39)
        close(harness.logits([(row, ids[40:70], 40)])[0], 69)
        for position in range(70, 73):
            close(harness.logits([(row, [ids[position]], position)])[0], position)
    # All at once: two decodes of different lengths, a continued prompt and a new one.
    harness.logits([(2, ids[:20], 0)])
    mixed = harness.logits(
        [(0, [ids[73]], 73), (1, ids[73:80], 73), (2, [ids[20]], 20), (3, ids[:50], 0)]
    )
    for logits, position in zip(mixed, (73, 20, 79, 49), strict=True):
        close(logits, position)


def test_a_tensor_of_another_shape_is_named(tmp_path: Path) -> None:
    folder = tiny_models.write(tmp_path, intermediate_size=96)
    text = (
        (folder / "config.json")
        .read_text()
        .replace('"intermediate_size": 96', '"intermediate_size": 80')
    )
    (folder / "config.json").write_text(text)
    with pytest.raises(ModelError, match=r"gate_proj.weight.*\(96, 64\).*\(80, 64\)"):
        load_model(open_checkpoint(folder), torch.float32, CPU, 512)


def test_an_unknown_architecture_is_named(tmp_path: Path) -> None:
    folder = tiny_models.write(tmp_path, architectures=["MambaForCausalLM"])
    with pytest.raises(ModelError, match=r"MambaForCausalLM.*known: .*LlamaForCausalLM"):
        load_model(open_checkpoint(folder), torch.float32, CPU, 512)


def test_an_mlp_of_another_kind_is_refused(tmp_path: Path) -> None:
    for changes, named in (({"hidden_act": "gelu"}, "gelu"), ({"mlp_bias": True}, "a bias")):
        with pytest.raises(ModelError, match=named):
            open_checkpoint(tiny_models.write(tmp_path / named, **changes))
