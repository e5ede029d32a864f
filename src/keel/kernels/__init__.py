"""Kernels of the engine, each with an oracle beside it in `reference/`.

`reference` needs torch alone; `triton` and `cuda` import their compilers when they are imported
themselves, so that this package can be imported on a machine with neither.
"""

from __future__ import annotations
