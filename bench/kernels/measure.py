"""How the kernels are timed, and the limits that their figures are shares of."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

Call = Callable[[], object]


def graph_us(calls: Sequence[Call], replays: int = 30) -> float:
    """Median microseconds of one call: all calls in one CUDA graph, replayed.

    Args:
        calls: on inputs of their own each, so that together they exceed the L2 cache where the
            figure is to be one of device memory.
    """
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    for _ in range(3):
        graph.replay()
    starts = [torch.cuda.Event(enable_timing=True) for _ in range(replays)]
    ends = [torch.cuda.Event(enable_timing=True) for _ in range(replays)]
    for start, end in zip(starts, ends, strict=True):
        start.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    times = [s.elapsed_time(e) for s, e in zip(starts, ends, strict=True)]
    return statistics.median(times) * 1e3 / len(calls)


def event_us(call: Call, repeats: int = 30) -> float:
    """Median microseconds of one call between device events, without a graph."""
    for _ in range(3):
        call()
    starts = [torch.cuda.Event(enable_timing=True) for _ in range(repeats)]
    ends = [torch.cuda.Event(enable_timing=True) for _ in range(repeats)]
    for start, end in zip(starts, ends, strict=True):
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(s.elapsed_time(e) for s, e in zip(starts, ends, strict=True)) * 1e3


def copy_limit() -> float:
    """Bytes a second of a large device copy, counting read and written."""
    source = torch.empty(2 << 30, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    return 2 * source.numel() / event_us(lambda: target.copy_(source), 10) * 1e6


def host_copy_limit() -> float:
    """Bytes a second from pinned host memory to the device by the copy engine."""
    source = torch.empty(256 << 20, dtype=torch.uint8).pin_memory()
    target = torch.empty_like(source, device="cuda")
    return source.numel() / event_us(lambda: target.copy_(source, non_blocking=True), 10) * 1e6


@dataclass
class Table:
    """Rows printed as they come, and as one table at the end."""

    title: str
    columns: Sequence[str]
    rows: list[list[str]] = field(default_factory=list)

    def add(self, *cells: object) -> None:
        self.rows.append([f"{c:.1f}" if isinstance(c, float) else str(c) for c in cells])

    def text(self) -> str:
        lines = [self.columns, *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.columns))]
        body = ["  ".join(c.rjust(w) for c, w in zip(line, widths, strict=True)) for line in lines]
        return "\n".join([f"## {self.title}", *body])
