"""Run-time compilation, where a compiler is; no GPU is needed to compile."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from keel.kernels.cuda import compile as compiling
from keel.kernels.cuda import hisparse

EMPTY = 'extern "C" __global__ void f(int* x) { *x = VALUE; }'


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if compiling._nvrtc() is None and compiling._nvcc() is None:
        pytest.skip("neither NVRTC nor nvcc is here")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return compiling.cache_folder()


def test_code_is_kept_by_content(cache: Path) -> None:
    one = compiling.compile_cubin(EMPTY, "sm_90", (("VALUE", 1),))
    assert one[:4] == b"\x7fELF"
    assert [p.read_bytes() for p in cache.iterdir()] == [one]
    compiling.compile_cubin(EMPTY, "sm_90", (("VALUE", 2),))
    assert len(list(cache.iterdir())) == 2
    for path in cache.iterdir():
        path.write_bytes(b"kept")
    assert compiling.compile_cubin(EMPTY, "sm_90", (("VALUE", 1),)) == b"kept"


def test_a_refused_source_brings_the_log_and_leaves_no_file(cache: Path) -> None:
    with pytest.raises(compiling.CompileError, match="undefined"):
        compiling.compile_cubin(EMPTY, "sm_90", ())
    assert not cache.exists() or not list(cache.iterdir())


@pytest.mark.parametrize(
    ("selected", "block", "hot", "padded", "values"),
    [(2048, 128, 8192, False, True), (2048, 0, 4096, False, False), (100, 0, 1000, True, False),
     (8192, 0, 8192, False, True)],
)  # fmt: skip
def test_the_swap_in_compiles(
    cache: Path, selected: int, block: int, hot: int, padded: bool, values: bool
) -> None:
    buffer = torch.zeros(64, 128, dtype=torch.bfloat16)
    pools = hisparse.Pools(buffer, buffer, *((buffer, buffer) if values else ()),
                           padded_pages=padded)  # fmt: skip
    size = hisparse.shared_bytes(selected, hot)
    assert size <= hisparse.MAX_SHARED_BYTES
    defines = hisparse.defines_of(pools, selected, block, hot, True, False, "i64", "int")
    source = hisparse._source() + f'\nstatic_assert(sizeof(Shared) <= {size}, "shared_bytes");'
    assert b"hisparse_swap_in" in compiling.compile_cubin(source, "sm_90", defines)


def test_what_does_not_go_together_is_refused() -> None:
    pinned = torch.zeros(8, 12, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="pinned"):
        hisparse.Pools(pinned, pinned).check()
    with pytest.raises(ValueError, match="both"):
        hisparse.Pools(pinned, pinned, device_v=pinned).check()
