"""The tokenizer inside a GGUF file: byte-level BPE with the pre-tokenizer that it names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, processors

from keel.errors import ModelError
from keel.tokenizer.tokenizer import Tokenizer, special_ids_of

# Token types of llama.cpp (`llama_token_type`).
_CONTROL, _USER_DEFINED = 3, 4

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

# `tokenizer.ggml.pre` -> how text is cut before BPE. Source: llm_tokenizer_bpe in llama.cpp's
# llama-vocab.cpp, and the tokenizer.json of the models that the names stand for.
_BYTE_LEVEL = {"gpt-2", "default"}
_DIGITS = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}
_SPLIT = {"llama-bpe": _LLAMA3, "llama3": _LLAMA3, "qwen2": _QWEN2}


def tokenizer_from_gguf(metadata: dict[str, Any], path: Path) -> Tokenizer:
    """Build the tokenizer that a GGUF file describes.

    Raises:
        ModelError: the file has none, or one of a kind that is not known.
    """
    kind = metadata.get("tokenizer.ggml.model")
    tokens: list[str] = metadata.get("tokenizer.ggml.tokens") or []
    merges: list[str] | None = metadata.get("tokenizer.ggml.merges")
    if kind != "gpt2" or not tokens or merges is None:
        what = f"a tokenizer of kind {kind!r}" if kind else "no tokenizer"
        raise ModelError(
            f"{path} has {what}; the kind known in GGUF is 'gpt2' (byte-level BPE)",
            "give the model's tokenizer.json with --tokenizer-path",
        )
    name = str(metadata.get("tokenizer.ggml.pre", "default"))
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    vocab = {token: index for index, token in enumerate(tokens)}
    backend = tokenizers.Tokenizer(
        models.BPE(vocab=vocab, merges=pairs, ignore_merges=name in ("llama-bpe", "llama3"))
    )
    backend.pre_tokenizer = _pre_tokenizer(name, path)
    backend.decoder = decoders.ByteLevel()
    types: list[int] = metadata.get("tokenizer.ggml.token_type") or []
    backend.add_tokens(
        [
            AddedToken(tokens[index], normalized=False, special=kind == _CONTROL)
            for index, kind in enumerate(types)
            if kind in (_CONTROL, _USER_DEFINED)
        ]
    )
    special = {
        f"{short}_token": tokens[index]
        for short in ("bos", "eos", "unk", "pad")
        if (index := metadata.get(f"tokenizer.ggml.{_LONG.get(short, short)}_token_id")) is not None
    }
    if metadata.get("tokenizer.ggml.add_bos_token", False) and "bos_token" in special:
        bos = special["bos_token"]
        backend.post_processor = processors.TemplateProcessing(
            single=[bos, "$A"], pair=[bos, "$A", "$B"], special_tokens=[(bos, vocab[bos])]
        )
    return Tokenizer(
        backend=backend,
        special_tokens=special,
        chat_template=metadata.get("tokenizer.chat_template"),
        special_ids=special_ids_of(backend),
    )


_LONG = {"unk": "unknown", "pad": "padding"}


def _pre_tokenizer(name: str, path: Path) -> pre_tokenizers.PreTokenizer:
    if name in _BYTE_LEVEL:
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if name in _DIGITS:
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    if name in _SPLIT:
        split = pre_tokenizers.Split(Regex(_SPLIT[name]), behavior="isolated")
        whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([split, whole])
    known = ", ".join(sorted({*_BYTE_LEVEL, *_DIGITS, *_SPLIT}))
    raise ModelError(
        f"{path} cuts text as {name!r} does; known: {known}",
        "give the model's tokenizer.json with --tokenizer-path",
    )
