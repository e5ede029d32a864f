"""Hugging Face folders: shards, what is missing, what is damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from keel.errors import ModelError
from keel.models.config import Rope, config_from_hf
from keel.weights.checkpoint import open_checkpoint
from support import tiny as tiny_models


def test_shards_are_one_checkpoint(tmp_path: Path) -> None:
    whole = open_checkpoint(tiny_models.write(tmp_path / "one"))
    parts = open_checkpoint(tiny_models.write(tmp_path / "three", shards=3))
    assert set(parts.names()) == set(whole.names())
    for name in whole.names():
        assert torch.equal(parts.tensor(name), whole.tensor(name))


def test_the_tokenizer_and_its_names(tmp_path: Path) -> None:
    tokenizer = open_checkpoint(tiny_models.write(tmp_path)).tokenizer()
    assert tokenizer.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert tokenizer.chat_template is not None
    (tmp_path / "chat_template.jinja").write_text("beside")
    assert open_checkpoint(tmp_path).tokenizer().chat_template == "beside"


def test_what_is_missing_or_damaged_is_named(tmp_path: Path) -> None:
    folder = tiny_models.write(tmp_path / "m", shards=2)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelError, match="lacks 1 of the files"):
        open_checkpoint(folder)
    folder = tiny_models.write(tmp_path / "n")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    with pytest.raises(ModelError, match="truncated or damaged"):
        open_checkpoint(folder)
    weights.unlink()
    with pytest.raises(ModelError, match=r"has no \*.safetensors"):
        open_checkpoint(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelError, match="not readable JSON"):
        open_checkpoint(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"has no config.json"):
        open_checkpoint(folder)
    folder = tiny_models.write(tmp_path / "o")
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match=r"tokenizer.json is damaged"):
        open_checkpoint(folder).tokenizer()
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match="no tokenizer") as caught:
        open_checkpoint(folder).tokenizer()
    assert "--tokenizer-path" in caught.value.remedy


def test_stop_tokens_come_from_the_generation_config(tmp_path: Path) -> None:
    folder = tiny_models.write(tmp_path)
    assert open_checkpoint(folder).config.eos_token_ids == (2,)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 7]}))
    assert open_checkpoint(folder).config.eos_token_ids == (2, 7)


def test_old_and_new_spellings_of_rope() -> None:
    shape = tiny_models.config()
    assert config_from_hf(shape, {}).rope == Rope(10000.0)
    old = {key: value for key, value in shape.items() if key != "rope_parameters"}
    scaling = {"type": "linear", "factor": 2.0}
    found = config_from_hf({**old, "rope_theta": 5e5, "rope_scaling": scaling}, {})
    assert found.rope == Rope(5e5, "linear", 2.0)
    with pytest.raises(ModelError, match="'dynamic'"):
        config_from_hf({**old, "rope_scaling": {"rope_type": "dynamic"}}, {})
    with pytest.raises(ModelError, match="no 'num_hidden_layers'"):
        config_from_hf({k: v for k, v in shape.items() if k != "num_hidden_layers"}, {})
