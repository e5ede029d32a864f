"""Loading machine code and launching it on torch's current stream, through the CUDA driver."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass

import torch

from keel.kernels.cuda.compile import compile_cubin

_MAX_DYNAMIC_SHARED_BYTES = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


@dataclass(frozen=True)
class Function:
    """A kernel loaded on one device."""

    handle: ctypes.c_void_p
    device: int
    threads: int
    shared_bytes: int

    def launch(self, blocks: int, *args: torch.Tensor | int | None) -> None:
        """Launch on the current stream; capturable in a CUDA graph.

        Args:
            args: tensors give their address, None a null pointer, `Int32` 4 bytes, other ints 8.

        Raises:
            RuntimeError: the driver refused the launch.
        """
        values = [_as_argument(a) for a in args]
        pointers = (ctypes.c_void_p * len(values))(
            *(ctypes.cast(ctypes.byref(v), ctypes.c_void_p) for v in values)
        )
        stream = torch.cuda.current_stream(self.device).cuda_stream
        with torch.cuda.device(self.device):
            _check(
                _driver().cuLaunchKernel(
                    self.handle, blocks, 1, 1, self.threads, 1, 1, self.shared_bytes,
                    ctypes.c_void_p(stream), pointers, None,
                )
            )  # fmt: skip


class Int32(int):
    """An argument that the kernel takes as a 32-bit integer."""


def _as_argument(value: torch.Tensor | int | None) -> ctypes.c_void_p | ctypes.c_int64:
    if value is None:
        return ctypes.c_void_p(None)
    if isinstance(value, torch.Tensor):
        return ctypes.c_void_p(value.data_ptr())
    if isinstance(value, Int32):
        return ctypes.c_int32(value)
    return ctypes.c_int64(value)


@functools.cache
def load(
    source: str,
    name: str,
    defines: tuple[tuple[str, str | int], ...],
    device: int,
    threads: int,
    shared_bytes: int,
) -> Function:
    """Compile (or take from the cache) and load a kernel.

    Raises:
        CompileError: see `compile_cubin`.
        RuntimeError: the driver refused the code or the amount of shared memory.
    """
    major, minor = torch.cuda.get_device_capability(device)
    code = compile_cubin(source, f"sm_{major}{minor}", defines)
    with torch.cuda.device(device):
        torch.cuda.synchronize(device)
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        _check(_driver().cuModuleLoadData(ctypes.byref(module), code))
        _check(_driver().cuModuleGetFunction(ctypes.byref(function), module, name.encode()))
        if shared_bytes:
            _check(_driver().cuFuncSetAttribute(function, _MAX_DYNAMIC_SHARED_BYTES, shared_bytes))
    return Function(function, device, threads, shared_bytes)


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _check(status: int) -> None:
    if status:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(status, ctypes.byref(text))
        raise RuntimeError(f"CUDA driver: {(text.value or b'unknown error').decode()} ({status})")
