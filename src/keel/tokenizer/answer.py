"""The text of one answer as it grows: detokenized, and ended by a stop string."""

from __future__ import annotations

from collections.abc import Sequence

from keel.tokenizer.detokenizer import make_detokenizer
from keel.tokenizer.tokenizer import Tokenizer


class AnswerText:
    """Tokens in, text out; text that may be the beginning of a stop string is held back.

    Args:
        stop: strings that end the answer and are not part of it.
        keep_stop: leave the stop string in the text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: Sequence[str] = (),
        *,
        skip_special_tokens: bool = True,
        keep_stop: bool = False,
    ) -> None:
        self._detokenizer = make_detokenizer(tokenizer, skip_special_tokens=skip_special_tokens)
        self._stop = tuple(one for one in stop if one)
        self._keep_stop = keep_stop
        self._held = ""
        self.matched: str | None = None

    def add(self, ids: Sequence[int]) -> str:
        """Text that can be shown now; sets `matched` when a stop string is complete."""
        return self._advance(self._detokenizer.add(ids), final=False)

    def finish(self) -> str:
        """What is left to show when no more tokens come."""
        return self._advance(self._detokenizer.finish(), final=True)

    def _advance(self, text: str, final: bool) -> str:
        if self.matched is not None:
            return ""
        self._held += text
        found = [(at, one) for one in self._stop if (at := self._held.find(one)) >= 0]
        if found:
            at, self.matched = min(found)
            end = at + len(self.matched) if self._keep_stop else at
            shown, self._held = self._held[:end], ""
            return shown
        keep = 0 if final else self._partial()
        shown = self._held[: len(self._held) - keep]
        self._held = self._held[len(shown) :]
        return shown

    def _partial(self) -> int:
        """Length of the longest end of the text that begins a stop string."""
        longest = max((len(one) for one in self._stop), default=1) - 1
        for size in range(min(longest, len(self._held)), 0, -1):
            tail = self._held[-size:]
            if any(one.startswith(tail) for one in self._stop):
                return size
        return 0
