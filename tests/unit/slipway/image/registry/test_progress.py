"""Progress: a line per layer in a log, one counting line on a terminal."""

from __future__ import annotations

import io

from slipway.image.descriptor import LAYER_GZIP, Descriptor
from slipway.image.registry.progress import Counting, Lines, reporter

LAYER = Descriptor(LAYER_GZIP, "sha256:" + "ab" * 32, 4_000_000)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_stream_decides() -> None:
    assert isinstance(reporter(io.StringIO()), Lines)
    assert isinstance(reporter(Terminal()), Counting)


def test_a_log_gets_a_line_per_layer() -> None:
    log = io.StringIO()
    progress = reporter(log)
    progress(LAYER, 1000, "")
    progress(LAYER, 4_000_000, "uploaded")
    assert log.getvalue() == "layer sha256:abababababab     4.00 MB uploaded\n"


def test_a_terminal_counts_and_is_left_clean() -> None:
    terminal = Terminal()
    progress = reporter(terminal)
    progress(LAYER, 1_000_000, "")
    assert "0 layers there, 1.0 of 4.0 MB" in terminal.getvalue()
    progress(LAYER, 4_000_000, "uploaded")
    assert terminal.getvalue().endswith("\r\x1b[K")
