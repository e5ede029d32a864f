"""Kernels in CUDA C++, compiled when they are first needed and kept by content."""

from __future__ import annotations
