"""Kernels in Triton, for CUDA and ROCm; importing a module of this package imports Triton."""

from __future__ import annotations
