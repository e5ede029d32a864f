"""CUDA C++ to machine code at run time: NVRTC or nvcc, and a cache on disk by content."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path

OPTIONS = ("--std=c++17",)


class CompileError(RuntimeError):
    """The compiler refused the source, or there is none; the message has its log."""


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/keel/kernels, by default ~/.cache/keel/kernels."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "keel" / "kernels"


def compile_cubin(source: str, arch: str, defines: tuple[tuple[str, str | int], ...]) -> bytes:
    """Machine code of a source without includes.

    Args:
        arch: for example sm_90.
        defines: macros and their values; they are part of the cache's key.

    Raises:
        CompileError: neither NVRTC nor nvcc is here, or the source is refused.
    """
    compiler = _nvrtc() or _nvcc()
    if compiler is None:
        raise CompileError(
            "no CUDA compiler: neither libnvrtc (it comes with torch for CUDA) nor nvcc was found"
        )
    options = (f"--gpu-architecture={arch}", *OPTIONS, *(f"-D{k}={v}" for k, v in defines))
    key = hashlib.sha256("\0".join((compiler.identity, *options, source)).encode()).hexdigest()
    path = cache_folder() / f"{key}.cubin"
    if path.is_file():
        return path.read_bytes()
    code = compiler.compile(source, options)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(code)
    os.replace(file.name, path)
    return code


class _Nvrtc:
    """NVIDIA's compiler as a library."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        major, minor = ctypes.c_int(), ctypes.c_int()
        library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        self.identity = f"nvrtc {major.value}.{minor.value}"

    def compile(self, source: str, options: tuple[str, ...]) -> bytes:
        program = ctypes.c_void_p()
        self._check(
            self._library.nvrtcCreateProgram(
                ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None
            )
        )
        try:
            flags = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
            if self._library.nvrtcCompileProgram(program, len(options), flags):
                log = self._text(program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog")
                raise CompileError(log.decode(errors="replace"))
            return self._text(program, "nvrtcGetCUBINSize", "nvrtcGetCUBIN")
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _text(self, program: ctypes.c_void_p, size_of: str, get: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(getattr(self._library, size_of)(program, ctypes.byref(size)))
        buffer = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._library, get)(program, buffer))
        return buffer.raw

    def _check(self, status: int) -> None:
        if status:
            self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
            raise CompileError(self._library.nvrtcGetErrorString(status).decode())


class _Nvcc:
    """NVIDIA's compiler as a program."""

    def __init__(self, path: str) -> None:
        self._path = path
        version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True)
        self.identity = version.stdout

    def compile(self, source: str, options: tuple[str, ...]) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            file, result = Path(folder, "kernel.cu"), Path(folder, "kernel.cubin")
            file.write_text(source)
            done = subprocess.run(
                [self._path, "-cubin", *options, "-o", str(result), str(file)],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise CompileError(done.stderr)
            return result.read_bytes()


@functools.cache
def _nvrtc() -> _Nvrtc | None:
    """NVRTC from torch's own packages, else from the system's libraries."""
    spec = find_spec("nvidia")
    roots = [Path(p) for p in spec.submodule_search_locations or ()] if spec else []
    found = [str(p) for root in roots for p in sorted(root.glob("*/lib/libnvrtc.so.*"))]
    for name in (*found, "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"):
        try:
            return _Nvrtc(ctypes.CDLL(name))
        except OSError:
            continue
    return None


@functools.cache
def _nvcc() -> _Nvcc | None:
    path = shutil.which("nvcc")
    return _Nvcc(path) if path else None
