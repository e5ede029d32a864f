"""A registry in memory, and a client of it that loses no time between attempts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slipway.image.descriptor import LAYER_GZIP
from slipway.image.layout import LayoutStore
from slipway.image.model import Image, Layer
from slipway.image.registry import Registry, Repository, Retries
from support.registries import MemoryRegistry, serving

QUICK = Retries(attempts=5, pause=0.001, longest=0.002, total=5.0)


@pytest.fixture(autouse=True)
def _nobody_logged_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "no-docker-config"))
    for name in ("USERNAME", "PASSWORD"):
        monkeypatch.delenv(f"SLIPWAY_REGISTRY_{name}", raising=False)
    monkeypatch.delenv("SLIPWAY_REGISTRY", raising=False)
    monkeypatch.delenv("SLIPWAY_INSECURE_REGISTRIES", raising=False)


@pytest.fixture
def server() -> Iterator[MemoryRegistry]:
    with serving(MemoryRegistry()) as running:
        yield running


@pytest.fixture
def registry(server: MemoryRegistry) -> Iterator[Registry]:
    client = Registry(server.host, retries=QUICK)
    yield client
    client.close()


@pytest.fixture
def repository(registry: Registry) -> Repository:
    return registry.repository("team/keel")


@pytest.fixture
def store(tmp_path: Path) -> LayoutStore:
    return LayoutStore(tmp_path / "store")


@pytest.fixture
def make_layer(store: LayoutStore) -> Callable[[bytes], Layer]:
    def make(data: bytes) -> Layer:
        blob = store.put(data, LAYER_GZIP)
        return Layer(blob, blob.digest, store)

    return make


@pytest.fixture
def make_image(make_layer: Callable[[bytes], Layer]) -> Callable[..., Image]:
    def make(*layers: bytes) -> Image:
        config = {"os": "linux", "architecture": "amd64"}
        return Image(config, tuple(make_layer(data) for data in layers))

    return make
