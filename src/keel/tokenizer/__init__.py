"""Text to tokens and back: tokenizer, chat template, incremental detokenizer."""

from __future__ import annotations
