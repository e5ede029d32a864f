"""How a push tells what it does: a line that counts on a terminal, a line per layer elsewhere."""

from __future__ import annotations

import threading
import time
from typing import Protocol, TextIO

from slipway.image.descriptor import Descriptor

_REDRAW = 0.1  # seconds between two states of the counting line


class Progress(Protocol):
    """Is told, from several threads, how each layer of an image gets on."""

    def __call__(self, blob: Descriptor, done: int, outcome: str) -> None:
        """Take note.

        Args:
            blob: the layer.
            done: bytes of it that are there.
            outcome: "" while it is on its way; then `present`, `mounted` or `uploaded`.
        """
        ...


def reporter(stream: TextIO) -> Progress:
    """The progress that suits `stream`."""
    return Counting(stream) if stream.isatty() else Lines(stream)


class Lines:
    """A line per layer, once it is there."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def __call__(self, blob: Descriptor, done: int, outcome: str) -> None:
        """Write the line."""
        if outcome:
            line = f"layer {blob.digest[:19]} {blob.size / 1e6:8.2f} MB {outcome}\n"
            with self._lock:
                self._stream.write(line)


class Counting:
    """One line that is written over, with layers and bytes so far; gone when all are there."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._done: dict[str, int] = {}
        self._size: dict[str, int] = {}
        self._open: set[str] = set()
        self._drawn = 0.0

    def __call__(self, blob: Descriptor, done: int, outcome: str) -> None:
        """Draw the line anew, if it is time."""
        with self._lock:
            self._size[blob.digest] = blob.size
            self._done[blob.digest] = done
            if outcome:
                self._open.discard(blob.digest)
            else:
                self._open.add(blob.digest)
            now = time.monotonic()
            if now - self._drawn < _REDRAW and self._open:
                return
            self._drawn = now
            done_bytes, size = sum(self._done.values()), sum(self._size.values())
            finished = len(self._size) - len(self._open)
            text = f"{finished} layers there, {done_bytes / 1e6:.1f} of {size / 1e6:.1f} MB"
            self._stream.write(f"\r\x1b[K{text if self._open else ''}")
            self._stream.flush()
