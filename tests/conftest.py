"""Marks become skips with their reason where the machine lacks what they need."""

from __future__ import annotations

import pytest

from support.services import docker_engine


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("docker") and (reason := docker_engine()):
            item.add_marker(pytest.mark.skip(reason=reason))
        if item.get_closest_marker("gpu") and (reason := _no_gpu()):
            item.add_marker(pytest.mark.skip(reason=reason))


def _no_gpu() -> str:
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    return "" if torch.cuda.is_available() else "no CUDA or ROCm device"
