"""Text as it arrives equals the text of the whole, and no piece has half a character."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from keel.tokenizer.answer import AnswerText
from keel.tokenizer.detokenizer import (
    ByteLevelDetokenizer,
    WindowDetokenizer,
    make_detokenizer,
)
from keel.tokenizer.from_folder import tokenizer_from_folder
from keel.tokenizer.tokenizer import Tokenizer, special_ids_of


@pytest.fixture(scope="module")
def byte_level(tiny: Path) -> Tokenizer:
    return tokenizer_from_folder(tiny)


@pytest.fixture(scope="module")
def metaspace() -> Tokenizer:
    """As Llama 2: words with a leading mark, unknown characters as bytes."""
    words = ["<unk>", "<s>", "▁", "▁the", "the", "s", "▁sea", "é", ","]
    vocab = {token: index for index, token in enumerate(words)}
    vocab |= {f"<0x{byte:02X}>": len(vocab) + byte for byte in range(256)}
    backend = Backend(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    backend.add_tokens([AddedToken("<s>", special=True)])
    return Tokenizer(backend, special_ids=special_ids_of(backend))


TEXT = "Hello, the 😀 and 👩‍👩‍👧 — 日本語 é\n\nthe end"


def test_the_kind_follows_the_decoder(byte_level: Tokenizer, metaspace: Tokenizer) -> None:
    assert isinstance(make_detokenizer(byte_level), ByteLevelDetokenizer)
    assert isinstance(make_detokenizer(metaspace), WindowDetokenizer)


def test_no_piece_has_half_a_character(byte_level: Tokenizer) -> None:
    ids = byte_level.encode(TEXT)
    assert len(ids) > len(TEXT), "characters of several tokens are the point"
    stream = make_detokenizer(byte_level)
    pieces = [stream.add([one]) for one in ids]
    assert "".join(pieces) == TEXT
    assert stream.finish() == ""


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_tokens_in_any_pieces_give_the_text_of_all(
    byte_level: Tokenizer, data: st.DataObject
) -> None:
    ids = data.draw(st.lists(st.integers(0, byte_level.vocab_size - 1), max_size=40))
    skip = data.draw(st.booleans())
    stream = make_detokenizer(byte_level, skip_special_tokens=skip)
    text, at = "", 0
    while at < len(ids):
        size = data.draw(st.integers(1, 4))
        text += stream.add(ids[at : at + size])
        at += size
    assert text + stream.finish() == byte_level.decode(ids, skip_special_tokens=skip)


def test_an_incomplete_end_becomes_a_mark_only_at_the_end(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("a😀")[:-1]
    stream = make_detokenizer(byte_level)
    assert [stream.add([one]) for one in ids] == ["a", "", "", ""]
    assert stream.finish() == "�"


def test_the_window_keeps_spaces_and_byte_characters(metaspace: Tokenizer) -> None:
    vocab = metaspace.backend.get_vocab()
    emoji = [vocab[f"<0x{byte:02X}>"] for byte in "😀".encode()]
    ids = [vocab["▁the"], vocab["▁sea"], vocab["s"], *emoji, vocab["▁the"], vocab[","]]
    stream = make_detokenizer(metaspace)
    pieces = [stream.add([one]) for one in ids]
    assert "".join(pieces) + stream.finish() == metaspace.decode(ids) == "the seas😀 the,"
    assert not any("�" in piece for piece in pieces)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_stop_strings_end_the_text_wherever_tokens_end(
    byte_level: Tokenizer, data: st.DataObject
) -> None:
    text = data.draw(st.text("abc é", min_size=1, max_size=30))
    stop = data.draw(st.lists(st.text("abc é", min_size=1, max_size=4), min_size=1, max_size=3))
    keep = data.draw(st.booleans())
    answer = AnswerText(byte_level, stop, keep_stop=keep)
    shown = ""
    for token in byte_level.encode(text):
        shown += answer.add([token])
        assert text.startswith(shown)
        if answer.matched is not None:
            break
    shown += answer.finish()
    ends = [(at + len(one), at, one) for one in stop if (at := text.find(one)) >= 0]
    if not ends:
        assert (shown, answer.matched) == (text, None)
    else:
        assert answer.matched in stop
        cut = len(shown) - len(answer.matched) if keep else len(shown)
        assert text[cut:].startswith(answer.matched)
        assert not any(one in text[:cut] for one in stop)
