"""Small fused operations: one pass over memory where torch makes several."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from keel.kernels.triton.common import FP8


@triton.jit
def _rms_norm_kernel(
    x, residual, weight, out, total, x_n, residual_n, eps,
    D: tl.constexpr, BLOCK_D: tl.constexpr, RESIDUAL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, BLOCK_D)
    ok = offs < D
    values = tl.load(x + row * x_n + offs, mask=ok, other=0.0)
    if RESIDUAL:
        more = tl.load(residual + row * residual_n + offs, mask=ok, other=0.0)
        values = (values.to(tl.float32) + more.to(tl.float32)).to(x.dtype.element_ty)
        tl.store(total + row * D + offs, values, mask=ok)
    wide = values.to(tl.float32)
    mean = tl.sum(wide * wide, 0) / D
    scaled = wide * tl.rsqrt(mean + eps) * tl.load(weight + offs, mask=ok, other=0.0).to(tl.float32)
    tl.store(out + row * D + offs, scaled.to(out.dtype.element_ty), mask=ok)


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """RMSNorm, of x + residual where there is one. Oracle: `reference.elementwise.rms_norm`.

    Args:
        x, residual: [n, d] bfloat16 or float16, d contiguous, at most 65,536. weight: [d].

    Returns:
        (normed [n, d], x + residual [n, d]; x itself without a residual), of x's dtype.
    """
    n, d = x.shape
    out = torch.empty(n, d, dtype=x.dtype, device=x.device)
    total = x if residual is None else torch.empty_like(out)
    block = triton.next_power_of_2(d)
    if n:
        _rms_norm_kernel[(n,)](
            x, x if residual is None else residual, weight, out, total, x.stride(0),
            0 if residual is None else residual.stride(0), eps, D=d, BLOCK_D=block,
            RESIDUAL=residual is not None, num_warps=max(1, min(16, block // 512)),
        )  # fmt: skip
    return out, total


@triton.jit
def _silu_mul_kernel(x, out, x_n, D: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offs = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = offs < D
    gate = tl.load(x + row * x_n + offs, mask=ok, other=0.0).to(tl.float32)
    up = tl.load(x + row * x_n + D + offs, mask=ok, other=0.0).to(tl.float32)
    product = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * D + offs, product.to(out.dtype.element_ty), mask=ok)


def silu_mul(x: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up. Oracle: `reference.elementwise.silu_mul`.

    Args:
        x: [n, 2 d] bfloat16 or float16: gate, up.

    Returns:
        [n, d] of x's dtype.
    """
    n, d = x.shape[0], x.shape[1] // 2
    out = torch.empty(n, d, dtype=x.dtype, device=x.device)
    block = min(1024, triton.next_power_of_2(d))
    if n:
        _silu_mul_kernel[(n, triton.cdiv(d, block))](
            x, out, x.stride(0), D=d, BLOCK=block, num_warps=4 if block >= 1024 else 2
        )
    return out


@triton.jit
def _rope_kernel(
    x, cos, sin, x_n, x_h, cos_n, HEADS: tl.constexpr, HALF: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    heads = tl.arange(0, ROWS)
    offs = tl.arange(0, BLOCK)
    ok = (heads < HEADS)[:, None] & (offs < HALF)[None, :]
    c = tl.load(cos + row * cos_n + offs, mask=offs < HALF, other=0.0).to(tl.float32)[None, :]
    s = tl.load(sin + row * cos_n + offs, mask=offs < HALF, other=0.0).to(tl.float32)[None, :]
    at = x + row * x_n + heads[:, None] * x_h + offs[None, :]
    first = tl.load(at, mask=ok, other=0.0).to(tl.float32)
    second = tl.load(at + HALF, mask=ok, other=0.0).to(tl.float32)
    tl.store(at, (first * c - second * s).to(x.dtype.element_ty), mask=ok)
    tl.store(at + HALF, (second * c + first * s).to(x.dtype.element_ty), mask=ok)


def rope_(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate the first columns of each head in place. Oracle: `reference.elementwise.rope`.

    Args:
        x: [n, heads, d], d contiguous, changed. cos, sin: [n, r / 2] of one stride; the first r
            columns are rotated, the two halves of them paired.

    Returns:
        x.
    """
    n, heads, _ = x.shape
    half = cos.shape[1]
    if n:
        _rope_kernel[(n,)](
            x, cos, sin, x.stride(0), x.stride(1), cos.stride(0), HEADS=heads, HALF=half,
            ROWS=triton.next_power_of_2(heads), BLOCK=triton.next_power_of_2(half), num_warps=4,
        )  # fmt: skip
    return x


@triton.jit
def _store_kv_kernel(
    k, v, slots, k_cache, v_cache, k_n, v_n, k_s, v_s, k_scale, v_scale,
    K: tl.constexpr, V: tl.constexpr, BLOCK: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    if slot < 0:
        return
    offs = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    keys = tl.load(k + token * k_n + offs, mask=offs < K, other=0.0)
    values = tl.load(v + token * v_n + offs, mask=offs < V, other=0.0)
    if SCALED:
        keys = keys.to(tl.float32) / k_scale
        values = values.to(tl.float32) / v_scale
    tl.store(k_cache + slot * k_s + offs, keys.to(k_cache.dtype.element_ty), mask=offs < K)
    tl.store(v_cache + slot * v_s + offs, values.to(v_cache.dtype.element_ty), mask=offs < V)


def store_kv(
    k: torch.Tensor,
    v: torch.Tensor,
    slots: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    *,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> None:
    """Write tokens' keys and values into their slots. Oracle: `reference.elementwise.store_kv`.

    Args:
        k: [n, hkv, d], v: [n, hkv, dv]; heads of a token contiguous.
        slots: [n] int32 or int64, -1 writes nothing (padding of a CUDA graph).
        k_cache, v_cache: [slots, hkv, d and dv], of k's dtype or fp8.
        k_scale, v_scale: what is stored is divided by them.

    Raises:
        ValueError: heads of a token are not contiguous.
    """
    n = k.shape[0]
    for name, t in (("k", k), ("v", v), ("k_cache", k_cache), ("v_cache", v_cache)):
        if t.stride(2) != 1 or (t.shape[1] > 1 and t.stride(1) != t.shape[2]):
            raise ValueError(f"{name}'s heads must be contiguous, its strides are {t.stride()}")
    if n == 0:
        return
    wide_k, wide_v = k[0].numel(), v[0].numel()
    block = min(1024, triton.next_power_of_2(max(wide_k, wide_v)))
    _store_kv_kernel[(n, triton.cdiv(max(wide_k, wide_v), block))](
        k, v, slots, k_cache, v_cache, k.stride(0), v.stride(0), k_cache.stride(0),
        v_cache.stride(0), k_scale, v_scale, K=wide_k, V=wide_v, BLOCK=block,
        SCALED=k_cache.dtype in FP8, num_warps=4,
    )  # fmt: skip
