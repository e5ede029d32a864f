"""HiSparse: keep the tokens that attention selects on the device, and the others in host memory."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib.resources import files

import torch

from keel.kernels.cuda.driver import Function, Int32, load
from keel.kernels.reference.hisparse import Residency

DSV4_VALUE_BYTES = 576
DSV4_PAGE_TOKENS = 64
DSV4_PAGE_BYTES = 37_440  # 64 * (576 + 8), padded to a multiple of 576
MAX_SHARED_BYTES = 227 * 1024
MAX_REPLAY_ROWS = 4096
_THREADS = 1024
_C_TYPE = {torch.int32: "int", torch.int64: "i64"}


@dataclass(frozen=True)
class Pools:
    """Where the items lie: in pinned host memory, and in the device pool.

    Args:
        host_k, device_k: [places, ...] with contiguous items; for `padded_pages`, bytes.
        host_v, device_v: values; None where one buffer holds all (MLA).
        padded_pages: DSV4's layout: pages of 64 values of 576 bytes, then 64 scales of 8 bytes,
            then padding to 37,440 bytes.
    """

    host_k: torch.Tensor
    device_k: torch.Tensor
    host_v: torch.Tensor | None = None
    device_v: torch.Tensor | None = None
    padded_pages: bool = False

    @property
    def k_bytes(self) -> int:
        return DSV4_VALUE_BYTES if self.padded_pages else _item_bytes(self.device_k)

    @property
    def v_bytes(self) -> int:
        return 0 if self.device_v is None else _item_bytes(self.device_v)

    def check(self) -> None:
        """Raises:
        ValueError: buffers that do not go together, or items that are not multiples of 16 bytes.
        """
        if (self.host_v is None) != (self.device_v is None):
            raise ValueError("values need both a host and a device buffer")
        if self.padded_pages and self.device_v is not None:
            raise ValueError("the DSV4 layout has one buffer, so no values")
        for host, device in ((self.host_k, self.device_k), (self.host_v, self.device_v)):
            if host is None or device is None:
                continue
            if not (host.is_contiguous() and device.is_contiguous()):
                raise ValueError("host and device buffers must be contiguous")
            if host.is_cpu and not host.is_pinned():
                raise ValueError("the host buffer must be pinned, or the device cannot read it")
            if not self.padded_pages and _item_bytes(host) != _item_bytes(device):
                raise ValueError(
                    f"items of {_item_bytes(host)} bytes on the host, {_item_bytes(device)} on "
                    "the device"
                )
            if not self.padded_pages and _item_bytes(device) % 16:
                raise ValueError(
                    f"an item must be a multiple of 16 bytes, not {_item_bytes(device)}"
                )


@dataclass(frozen=True)
class MissPlan:
    """What a swap-in copied, for layers that share its index.

    Args:
        source: [bs, selected] int64, places in the host pool. target: [bs, selected] int32.
        count: [bs] int32, misses of each request.
    """

    source: torch.Tensor
    target: torch.Tensor
    count: torch.Tensor

    @staticmethod
    def allocate(bs: int, selected: int, device: torch.device) -> MissPlan:
        return MissPlan(
            torch.zeros(bs, selected, dtype=torch.int64, device=device),
            torch.zeros(bs, selected, dtype=torch.int32, device=device),
            torch.zeros(bs, dtype=torch.int32, device=device),
        )


def swap_in(
    selection: torch.Tensor,
    state: Residency,
    pools: Pools,
    req_ids: torch.Tensor,
    seq_lens: torch.Tensor,
    num_real: torch.Tensor,
    out: torch.Tensor,
    *,
    block: int = 0,
    plan: MissPlan | None = None,
    skip_copy: bool = False,
) -> None:
    """Make the selected tokens resident, and give the device slot of each.

    What it does to the state is stated by `reference.hisparse.swap_in`, its oracle; the result is
    equal to the oracle's, number by number. The launch depends on shapes only, so it can be
    captured in a CUDA graph.

    Args:
        selection: [bs, k] int32, positions (block 0) or ids of blocks of `block` positions; -1 for
            none.
        state: of all requests; changed in place. Slots beyond `hot` are the newest token's.
        req_ids, seq_lens: [bs], each int32 or int64.
        num_real: [1] int32; rows from it on give -1.
        out: [bs, >= k * max(1, block)] int32, the device slot of each selected token, -1 for none.
        plan: where to record the misses for `replay`; only its `count` is written when no request
            misses.
        skip_copy: leave the bytes where they are: a timing probe, the data is then wrong.

    Raises:
        ValueError: shapes or dtypes that do not go together.
        CompileError: no CUDA compiler.
    """
    bs, k = selection.shape
    selected, hot = k * max(1, block), state.hot
    if selected > hot:
        raise ValueError(f"{selected} selected tokens do not fit into {hot} slots")
    if not 0 < hot <= 16384:
        raise ValueError(f"a working set has at most 16384 slots, not {hot}")
    if state.tokens.shape[1] < hot or state.device_locs.shape[1] <= hot:
        raise ValueError(f"tokens and device_locs must have {hot} slots and the newest token's")
    for name, t, dtype in (
        ("selection", selection, torch.int32),
        ("tokens", state.tokens, torch.int32),
        ("lru", state.lru, torch.int16),
        ("device_locs", state.device_locs, torch.int32),
        ("host_locs", state.host_locs, torch.int64),
        ("num_real", num_real, torch.int32),
        ("out", out, torch.int32),
    ):
        if t.dtype != dtype or t.stride(-1) != 1:
            raise ValueError(f"{name} must be {dtype} and contiguous in its last dimension")
    if req_ids.dtype not in _C_TYPE or seq_lens.dtype not in _C_TYPE:
        raise ValueError("req_ids and seq_lens must be int32 or int64")
    if out.shape[0] < bs or out.shape[1] < selected:
        raise ValueError(f"out must hold [{bs}, {selected}], not {tuple(out.shape)}")
    pools.check()
    if bs == 0:
        return
    shared = shared_bytes(selected, hot)
    if shared > MAX_SHARED_BYTES:
        raise ValueError(
            f"{selected} selected tokens and {hot} slots need {shared} bytes of shared memory, a "
            f"multiprocessor has {MAX_SHARED_BYTES}"
        )
    function = _function(
        "hisparse_swap_in", pools, selection.device.index or 0, shared, selected, block, hot,
        plan is not None, skip_copy, _C_TYPE[seq_lens.dtype], _C_TYPE[req_ids.dtype],
    )  # fmt: skip
    function.launch(
        bs,
        selection, selection.stride(0), state.tokens, state.tokens.stride(0),
        state.lru, state.lru.stride(0), state.device_locs, state.device_locs.stride(0),
        state.host_locs, state.host_locs.stride(0), req_ids, seq_lens, num_real,
        out, out.stride(0), pools.host_k, pools.host_v, pools.device_k, pools.device_v,
        None if plan is None else plan.source, None if plan is None else plan.target,
        0 if plan is None else plan.source.stride(0), None if plan is None else plan.count,
    )  # fmt: skip


def replay(
    plan: MissPlan,
    pools: Pools,
    num_real: torch.Tensor,
    *,
    blocks: int = 16,
    skip_copy: bool = False,
) -> None:
    """Copy what a recorded plan names, between another layer's pools.

    The slots given by the swap-in that recorded the plan are then valid for this layer too.

    Args:
        num_real: [1] int32; rows from it on are left out.
        blocks: thread blocks to use; few leave the device to others, and some tens fill the link.

    Raises:
        ValueError: over 4096 rows, or pools that do not go together.
    """
    rows = plan.count.shape[0]
    if rows > MAX_REPLAY_ROWS:
        raise ValueError(f"a plan has at most {MAX_REPLAY_ROWS} rows, not {rows}")
    pools.check()
    function = _function(
        "hisparse_replay", pools, plan.count.device.index or 0, 0, 32, 0, 32, False, skip_copy,
        "int", "int",
    )  # fmt: skip
    function.launch(
        blocks, plan.source, plan.target, plan.source.stride(0), plan.count, num_real, Int32(rows),
        pools.host_k, pools.host_v, pools.device_k, pools.device_v,
    )  # fmt: skip


def shared_bytes(selected: int, hot: int) -> int:
    """Size of `struct Shared` in hisparse.cu."""
    hash_size = 64
    while hash_size < 2 * selected:
        hash_size *= 2
    total = 8 * hash_size + 4 * selected + 2 * selected + hot
    total = -(-total // 4) * 4 + 4 * (_THREADS // 32 + 1)
    return -(-total // 16) * 16


@functools.cache
def _source() -> str:
    return (files("keel.kernels.cuda") / "hisparse.cu").read_text()


def _function(
    name: str, pools: Pools, device: int, shared: int, selected: int, block: int, hot: int,
    record: bool, skip_copy: bool, length: str, index: str,
) -> Function:  # fmt: skip
    defines = defines_of(pools, selected, block, hot, record, skip_copy, length, index)
    return load(_source(), name, defines, device, _THREADS, shared)


def defines_of(
    pools: Pools, selected: int, block: int, hot: int, record: bool, skip_copy: bool, length: str,
    index: str,
) -> tuple[tuple[str, str | int], ...]:  # fmt: skip
    """The compile-time parameters that hisparse.cu documents."""
    return (
        ("THREADS", _THREADS), ("SELECTED", selected), ("BLOCK", block), ("HOT", hot),
        ("K_BYTES", pools.k_bytes), ("V_BYTES", pools.v_bytes),
        ("PADDED_PAGES", int(pools.padded_pages)), ("RECORD", int(record)),
        ("SKIP_COPY", int(skip_copy)), ("LENGTH", length), ("INDEX", index),
    )  # fmt: skip


def _item_bytes(t: torch.Tensor) -> int:
    return t[0].numel() * t.element_size()
