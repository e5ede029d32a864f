"""Tokenizers from GGUF metadata, against transformers on the same vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend

from keel.errors import ModelError
from keel.tokenizer.from_gguf import tokenizer_from_gguf


def metadata(tiny: Path, **changes: Any) -> dict[str, Any]:
    """The tiny tokenizer as a GGUF file would hold it."""
    import json

    spec = json.loads((tiny / "tokenizer.json").read_text())
    vocab = spec["model"]["vocab"]
    special = {token["content"] for token in spec["added_tokens"]}
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": sorted(vocab, key=vocab.__getitem__),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in spec["model"]["merges"]],
        "tokenizer.ggml.token_type": [
            3 if token in special else 1 for token in sorted(vocab, key=vocab.__getitem__)
        ],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.chat_template": "{{ bos_token }}",
        **changes,
    }


TEXTS = ["the thin and", "  the\n\n  thé 123", "<|user|>the</s>and<s>", "😀 the", ""]


def test_it_is_the_tokenizer_of_the_folder(tiny: Path) -> None:
    theirs = Backend.from_file(str(tiny / "tokenizer.json"))
    ours = tokenizer_from_gguf(metadata(tiny), Path("x.gguf"))
    for text in TEXTS:
        ids = ours.encode(text)
        assert ids == theirs.encode(text).ids
        assert ours.decode(ids, skip_special_tokens=False) == text
    assert ours.decode(ours.encode("<s>the</s>")) == "the"
    assert ours.special_tokens == {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<unk>"}


def test_a_bos_is_added_where_the_file_says_so(tiny: Path) -> None:
    ours = tokenizer_from_gguf(metadata(tiny, **{"tokenizer.ggml.add_bos_token": True}), Path("x"))
    assert ours.encode("the")[0] == 1
    assert ours.encode("the", add_special_tokens=False)[0] != 1


def test_digits_are_single_where_the_model_learned_them_so(tiny: Path) -> None:
    """`smollm` cuts before each digit, so spaces before a digit stay together (llama.cpp)."""
    ours = tokenizer_from_gguf(metadata(tiny, **{"tokenizer.ggml.pre": "smollm"}), Path("x"))
    pieces = ours.backend.pre_tokenizer.pre_tokenize_str("a  12")
    assert [text for text, _ in pieces] == ["a", "ĠĠ", "1", "2"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tokenizer.ggml.model": "llama"}, "of kind 'llama'"),
        ({"tokenizer.ggml.model": None}, "no tokenizer"),
        ({"tokenizer.ggml.pre": "klingon"}, "'klingon'"),
    ],
)
def test_what_is_not_known_is_refused_with_a_way_out(
    tiny: Path, changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(ModelError, match=says) as caught:
        tokenizer_from_gguf(metadata(tiny, **changes), Path("x.gguf"))
    assert "--tokenizer-path" in caught.value.remedy
