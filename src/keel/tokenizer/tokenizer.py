"""Text to tokens and back, over the `tokenizers` library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import tokenizers


@dataclass(frozen=True)
class Tokenizer:
    """A checkpoint's tokenizer and chat template.

    Args:
        backend: the `tokenizers` pipeline; its post-processor adds what the model expects (bos).
        special_tokens: names known to chat templates (`bos_token`, `eos_token`) to their text.
        chat_template: Jinja source, or None.
        special_ids: tokens that decoding leaves out.
    """

    backend: tokenizers.Tokenizer
    special_tokens: dict[str, str] = field(default_factory=dict)
    chat_template: str | None = None
    special_ids: frozenset[int] = frozenset()

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included."""
        return self.backend.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text; special tokens written out in it become themselves."""
        return self.backend.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of tokens; bytes that are no UTF-8 become U+FFFD."""
        return self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens)


def special_ids_of(backend: tokenizers.Tokenizer) -> frozenset[int]:
    """Ids of the added tokens that are marked special."""
    added = backend.get_added_tokens_decoder()
    return frozenset(index for index, token in added.items() if token.special)
