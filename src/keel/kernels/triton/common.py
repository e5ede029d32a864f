"""What the attention kernels share: one step of online softmax, the merge of parts, workspaces."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

LOG2_E = 1.4426950408889634
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)


@triton.jit
def softmax_step(scores, v, top, total, acc):
    """Fold one tile into the running softmax, in base 2.

    Args:
        scores: [rows, keys] float32, scaled by log2(e), -inf where not visible.
        v: [keys, d]. top, total: [rows] float32; top is -inf while nothing was visible.
        acc: [rows, d] float32.
    """
    new_top = tl.maximum(top, tl.max(scores, 1))
    # A row that has seen nothing yet: exp2(-inf - 0) is 0, and no -inf - -inf appears.
    base = tl.where(new_top == float("-inf"), 0.0, new_top)
    weights = tl.exp2(scores - base[:, None])
    fade = tl.exp2(top - base)
    total = total * fade + tl.sum(weights, 1)
    acc = acc * fade[:, None]
    acc = tl.dot(weights.to(v.dtype), v, acc)
    return new_top, total, acc


@triton.jit
def sink_logits(q, sink, heads, head_ok, offs_d, d_ok, D: tl.constexpr, scale, KIND: tl.constexpr):
    """Logits of the sinks in base 2. KIND 1: `sink` [hq] logits; 2: `sink` [hq, D] keys."""
    LOG2_E: tl.constexpr = 1.4426950408889634
    if KIND == 1:
        logits = tl.load(sink + heads, mask=head_ok, other=0.0).to(tl.float32) * LOG2_E
    else:
        keys = tl.load(
            sink + heads[:, None] * D + offs_d[None, :],
            mask=head_ok[:, None] & d_ok[None, :],
            other=0.0,
        )
        logits = tl.sum(q.to(tl.float32) * keys.to(tl.float32), 1) * scale
    return logits


@triton.jit
def resolve_selected(
    topk_row, table_row, slots_row, i, end, seq_len, offs_n, BLOCK: tl.constexpr,
    TILE: tl.constexpr, SLOTS: tl.constexpr, CONTIGUOUS: tl.constexpr,
):  # fmt: skip
    """(slots, visible) of the keys of tile `i` of the selection; nothing is visible from `end`."""
    PER_BLOCK: tl.constexpr = BLOCK // TILE
    block = tl.load(topk_row + i // PER_BLOCK, mask=i < end, other=-1)
    # No block: past the end of any sequence.
    start = tl.where(block >= 0, block * BLOCK + (i % PER_BLOCK) * TILE, 1 << 30)
    position = start + offs_n
    visible = position < seq_len
    if SLOTS:
        slot = tl.load(slots_row + i * TILE + offs_n, mask=visible, other=-1)
        visible = visible & (slot >= 0)
    elif CONTIGUOUS:
        begin = tl.load(table_row + start, mask=start < seq_len, other=0)
        slot = begin + offs_n
    else:
        slot = tl.load(table_row + position, mask=visible, other=0)
    return slot, visible


@triton.jit
def finish(acc, total, v_scale):
    """The softmax's quotient; zeros where nothing was visible."""
    return acc * (v_scale / tl.where(total == 0.0, 1.0, total))[:, None]


@triton.jit
def merge_parts(
    part_out, part_top, part_total, first, out, out_h, heads, row_ok, v_scale,
    PARTS: tl.constexpr, ROWS: tl.constexpr, BLOCK_D: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Join the parts of one (request, KV head) from the workspace and store its output.

    Args:
        first: index of its first part; each part is [ROWS, BLOCK_D] sums, [ROWS] tops and totals.
        out: the request's row; head i of it is at `out + i * out_h`.
    """
    # With the rows first, Triton's layout holds all parts of an element in one thread, so that
    # their sum needs no exchange; a chunk of columns at a time keeps them in registers.
    FIT: tl.constexpr = 8192 // (PARTS * ROWS)
    AT_LEAST: tl.constexpr = FIT if FIT > 16 else 16
    CHUNK: tl.constexpr = AT_LEAST if AT_LEAST < BLOCK_D else BLOCK_D
    rows = tl.arange(0, ROWS)
    at = (first + tl.arange(0, PARTS))[None, :] * ROWS + rows[:, None]
    tops = tl.load(part_top + at, cache_modifier=".cg")
    totals = tl.load(part_total + at, cache_modifier=".cg")
    sums_at = part_out + at.to(tl.int64)[:, :, None] * BLOCK_D
    columns = tl.arange(0, CHUNK)
    # Asked for before the weights are made, so that one wait covers both.
    used = row_ok[:, None, None]
    sums = tl.load(sums_at + columns[None, None, :], mask=used, other=0.0, cache_modifier=".cg")
    top = tl.max(tops, 1)
    weights = tl.exp2(tops - tl.where(top == float("-inf"), 0.0, top)[:, None])
    total = tl.sum(totals * weights, 1)
    weights = weights * (v_scale / tl.where(total == 0.0, 1.0, total))[:, None]
    for column in tl.static_range(0, BLOCK_D, CHUNK):
        offs = column + columns
        joined = tl.sum(sums * weights[:, :, None], 1)
        if column + CHUNK < BLOCK_D:
            sums = tl.load(
                sums_at + (offs + CHUNK)[None, None, :], mask=used, other=0.0, cache_modifier=".cg"
            )
        tl.store(
            out + heads[:, None] * out_h + offs[None, :],
            joined.to(out.dtype.element_ty),
            mask=row_ok[:, None] & (offs < D)[None, :],
        )


@dataclass(frozen=True)
class DecodeConfig:
    """How a decode is cut up: into `parts` programs a (request, KV head), `tile` keys a step."""

    parts: int
    tile: int
    warps: int
    stages: int


@dataclass(frozen=True)
class Workspace:
    """Device memory in which the parts of a split decode meet.

    One launch at a time may use it. `tickets` is zero before and after each
    launch, since the last part to arrive resets it.

    Args:
        out: [parts, rows, d] float32. top, total: [parts, rows] float32.
        tickets: [pairs] int32.
    """

    out: torch.Tensor
    top: torch.Tensor
    total: torch.Tensor
    tickets: torch.Tensor

    @staticmethod
    def allocate(parts: int, pairs: int, rows: int, d: int, device: torch.device) -> Workspace:
        return Workspace(
            torch.empty(parts * rows * d, dtype=torch.float32, device=device),
            torch.empty(parts * rows, dtype=torch.float32, device=device),
            torch.empty(parts * rows, dtype=torch.float32, device=device),
            torch.zeros(pairs, dtype=torch.int32, device=device),
        )

    def fits(self, parts: int, pairs: int, rows: int, d: int) -> bool:
        return (
            self.out.numel() >= parts * rows * d
            and self.top.numel() >= parts * rows
            and self.tickets.numel() >= pairs
        )


_workspaces: dict[torch.device, Workspace] = {}


def workspace_for(parts: int, pairs: int, rows: int, d: int, device: torch.device) -> Workspace:
    """The device's common workspace, grown when it is too small.

    Decodes that may overlap in time, on several streams, must not share it: give each stream its
    own `Workspace`.

    Raises:
        RuntimeError: it is too small and a CUDA graph is being captured, so that the memory would
            belong to the graph; run once before the capture, or pass a workspace.
    """
    found = _workspaces.get(device)
    if found is None or not found.fits(parts, pairs, rows, d):
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                f"the decode workspace must grow to {parts} parts of {rows} x {d} while a graph is "
                "captured: run the same shapes once before, or pass `workspace`"
            )
        found = _workspaces[device] = Workspace.allocate(parts, pairs, rows, d, device)
    return found


@functools.cache
def processors(device: torch.device) -> int:
    """Multiprocessors (compute units) of a device; 4 where there is none (the interpreter)."""
    if device.type != "cuda":
        return 4
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def check_cache(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor) -> bool:
    """Whether the cache is fp8.

    Raises:
        ValueError: shapes or dtypes that do not go together, with what would.
    """
    if q.dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(f"q must be bfloat16 or float16, not {q.dtype}")
    fp8 = k_cache.dtype in FP8
    if k_cache.dtype != v_cache.dtype or (k_cache.dtype != q.dtype and not fp8):
        raise ValueError(
            f"keys and values must both be {q.dtype}, as q is, or the same fp8; "
            f"they are {k_cache.dtype} and {v_cache.dtype}"
        )
    hq, hkv = q.shape[1], k_cache.shape[1]
    if v_cache.shape[:2] != k_cache.shape[:2] or hq % hkv:
        raise ValueError(
            f"{hq} query heads do not go with keys {tuple(k_cache.shape)} and "
            f"values {tuple(v_cache.shape)}"
        )
    for name, t in (("q", q), ("k_cache", k_cache), ("v_cache", v_cache)):
        if t.stride(-1) != 1:
            raise ValueError(f"{name}'s last dimension must be contiguous, its strides are "
                             f"{t.stride()}")  # fmt: skip
    return fp8


def sink_kind(sink: torch.Tensor | None, hq: int, d: int) -> int:
    """0 for none, 1 for logits [hq], 2 for keys [hq, d].

    Raises:
        ValueError: another shape.
    """
    if sink is None:
        return 0
    if not sink.is_contiguous() or tuple(sink.shape) not in ((hq,), (hq, d)):
        raise ValueError(f"a sink is contiguous [{hq}] or [{hq}, {d}], not {tuple(sink.shape)}")
    return sink.ndim


def power_of_two_below(n: int) -> int:
    """The largest power of two that is at most n, at least 1."""
    return 1 << (max(1, n).bit_length() - 1)


def split_width(d: int) -> tuple[int, int]:
    """A head's width as a power of two and another that covers the rest: 576 is 512 and 64.

    Raises:
        ValueError: under 16.
    """
    if d < 16:
        raise ValueError(f"a head is at least 16 wide, not {d}")
    main = power_of_two_below(d)
    return main, 0 if d == main else max(16, 1 << (d - main - 1).bit_length())
