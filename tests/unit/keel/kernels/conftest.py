"""Triton's interpreter where there is no GPU; it must be chosen before a kernel is imported."""

from __future__ import annotations

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    try:
        import triton  # noqa: F401
    except ImportError:
        for item in items:
            if "/kernels/test_triton_" in str(item.path):
                item.add_marker(pytest.mark.skip(reason="triton is not installed"))
