"""A tiny real model for tests of everything above it."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import tiny as tiny_models


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a random Llama with two layers."""
    return tiny_models.write(tmp_path_factory.mktemp("tiny"))
