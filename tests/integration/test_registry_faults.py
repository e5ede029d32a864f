"""Pushes and pulls through a proxy that breaks things, before a real docker-registry."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipway.errors import IntegrityError, NetworkError
from slipway.image.descriptor import LAYER_GZIP, Platform
from slipway.image.layout import LayoutStore
from slipway.image.model import Image, Layer
from slipway.image.registry import (
    RefusedError,
    Registry,
    Repository,
    Retries,
    pull_image,
    push_image,
)
from support.docker_registry import docker_registry
from support.registries import Fault, FaultProxy, serving

MIB = 1 << 20
AMD64 = Platform("linux", "amd64")
QUICK = Retries(attempts=6, pause=0.005, longest=0.02, total=20.0)
UPLOADS = r"/v2/.*/blobs/uploads/.*"


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with docker_registry(tmp_path_factory.mktemp("registry")) as address:
        yield address


@pytest.fixture
def proxy(upstream: str) -> Iterator[FaultProxy]:
    with serving(FaultProxy(upstream)) as running:
        yield running


@pytest.fixture
def repository(proxy: FaultProxy, request: pytest.FixtureRequest) -> Repository:
    name = "".join(c for c in request.node.name.lower() if c.isalnum())
    return Registry(proxy.host, retries=QUICK).repository(f"team/{name}")


@pytest.fixture
def store(tmp_path: Path) -> LayoutStore:
    return LayoutStore(tmp_path / "store")


@pytest.fixture
def image(store: LayoutStore) -> Image:
    sizes = (5 * MIB, 3 * MIB, 200_000, 1)
    blobs = [store.put(os.urandom(size), LAYER_GZIP) for size in sizes]
    layers = tuple(Layer(blob, blob.digest, store) for blob in blobs)
    return Image({"os": "linux", "architecture": "amd64"}, layers)


def assert_there(upstream: str, repository: Repository, image: Image, tmp_path: Path) -> None:
    """The image is whole in the registry, seen without the proxy."""
    direct = Registry(upstream).repository(repository.name)
    found = pull_image(direct, "v1", LayoutStore(tmp_path / "check"), AMD64)
    assert found.digest == image.digest


@pytest.mark.parametrize(
    "fault",
    [
        Fault(method="PUT", path=UPLOADS, cut=0, times=2),
        Fault(method="PUT", path=UPLOADS, cut=150_000, times=3),
        Fault(method="PUT", path=UPLOADS, over=4 * MIB, cut=4 * MIB),
        Fault(method="PUT", path=UPLOADS, lose_answer=True, times=3),
        Fault(method="POST", lose_answer=True, times=3),
        Fault(method="POST", status=429, headers={"Retry-After": "0"}, times=3),
        Fault(path=UPLOADS, status=500, times=4),
        Fault(method="PUT", path=UPLOADS, status=502, times=3),
        Fault(method="PUT", path=UPLOADS, status=502, early=True, over=MIB, times=2),
        Fault(method="PUT", path=UPLOADS, late_status=502, times=2),
        Fault(method="PUT", path=UPLOADS, corrupt_request=True, over=0, times=2),
        Fault(method="PUT", path=".*/manifests/.*", status=500, times=3),
        Fault(method="PUT", path=".*/manifests/.*", late_status=500, times=1),
        Fault(method="PUT", path=".*/manifests/.*", lose_answer=True, times=2),
        Fault(method="HEAD|GET", status=503, times=3),
        Fault(method="HEAD|GET", lose_answer=True, times=3),
    ],
    ids=lambda fault: ",".join(
        f"{name}={value}"
        for name, value in vars(fault).items()
        if value != getattr(Fault(), name) and name != "path"
    ),
)
def test_a_push_survives(
    proxy: FaultProxy,
    upstream: str,
    repository: Repository,
    image: Image,
    tmp_path: Path,
    fault: Fault,
) -> None:
    proxy.faults.append(Fault(**{**vars(fault), "seen": 0}))
    push_image(image, repository, ["v1", "latest"])
    assert proxy.faults[0].seen >= 1
    assert_there(upstream, repository, image, tmp_path)


def test_a_small_limit_in_front_makes_chunks(
    proxy: FaultProxy,
    upstream: str,
    repository: Repository,
    image: Image,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    proxy.fault(over=MIB, status=413, early=True, times=999, body=b"<html>413 Too Large</html>")
    with caplog.at_level(logging.INFO):
        push_image(image, repository, ["v1"])
    assert_there(upstream, repository, image, tmp_path)
    assert max(seen.length for seen in proxy.seen if seen.method == "PATCH") >= MIB
    assert "chunks of 1 MiB" in caplog.text


def test_a_limit_that_lets_nothing_through_is_named(
    proxy: FaultProxy, upstream: str, repository: Repository, image: Image
) -> None:
    proxy.fault(over=MIB // 2, status=413, early=True, times=999)
    with pytest.raises(RefusedError) as caught:
        push_image(image, repository, ["v1", "latest"])
    assert "client_max_body_size" in caught.value.remedy
    assert Registry(upstream).repository(repository.name).tags() == []


def test_chunks_are_resumed_or_begun_again(
    proxy: FaultProxy, upstream: str, repository: Repository, image: Image, tmp_path: Path
) -> None:
    proxy.fault(over=2 * MIB, status=413, early=True, times=999)
    proxy.fault(method="PATCH", cut=MIB // 2, times=2, after=1)
    proxy.fault(method="PATCH", status=502, times=1, after=3)
    push_image(image, repository, ["v1"])
    assert_there(upstream, repository, image, tmp_path)


@pytest.mark.parametrize(
    "fault",
    [
        Fault(method="GET", path=".*/blobs/.*", truncate=100, times=3),
        Fault(method="GET", path=".*/blobs/.*", truncate=2 * MIB, times=2),
        Fault(method="GET", status=429, headers={"Retry-After": "0"}, times=3),
        Fault(method="GET", status=500, times=3),
        Fault(method="GET", lose_answer=True, times=3),
        Fault(method="GET", pause=0.005, times=99),
    ],
    ids=lambda fault: ",".join(
        f"{name}={value}"
        for name, value in vars(fault).items()
        if value != getattr(Fault(), name) and name not in ("path", "method")
    ),
)
def test_a_pull_survives(
    proxy: FaultProxy,
    upstream: str,
    repository: Repository,
    image: Image,
    tmp_path: Path,
    fault: Fault,
) -> None:
    push_image(image, Registry(upstream).repository(repository.name), ["v1"])
    proxy.faults.append(Fault(**{**vars(fault), "seen": 0}))
    elsewhere = LayoutStore(tmp_path / "elsewhere")
    assert pull_image(repository, "v1", elsewhere, AMD64).digest == image.digest
    assert proxy.faults[0].seen >= 1


@pytest.mark.parametrize("path", [".*/blobs/.*", ".*/manifests/.*"])
def test_a_damaged_answer_is_refused_and_not_kept(
    proxy: FaultProxy,
    upstream: str,
    repository: Repository,
    image: Image,
    tmp_path: Path,
    path: str,
) -> None:
    push_image(image, Registry(upstream).repository(repository.name), ["v1"])
    proxy.fault(method="GET", path=path, corrupt=True, times=99)
    elsewhere = LayoutStore(tmp_path / "elsewhere")
    with pytest.raises(IntegrityError, match="sha256:"):
        pull_image(repository, "v1", elsewhere, AMD64)
    assert not [digest for digest in _digests(image) if elsewhere.has(digest)]


def test_a_registry_that_never_recovers_is_given_up(
    proxy: FaultProxy, upstream: str, repository: Repository, image: Image
) -> None:
    proxy.fault(method="PUT", path=UPLOADS, cut=1000, times=9999)
    with pytest.raises(NetworkError, match=r"attempts|reset"):
        push_image(image, repository, ["v1", "latest"])
    assert Registry(upstream).repository(repository.name).tags() == []
    assert len(proxy.seen) < 400


def test_much_goes_wrong_at_once(
    proxy: FaultProxy, upstream: str, repository: Repository, image: Image, tmp_path: Path
) -> None:
    """Faults of all kinds at random places, by a fixed seed; then the image is whole."""
    chance = random.Random(5)
    for _ in range(14):
        kind = chance.choice(
            [
                {"cut": chance.randrange(3 * MIB), "over": 0},
                {"lose_answer": True},
                {"status": chance.choice([429, 500, 502, 503]), "headers": {"Retry-After": "0"}},
                {"late_status": 502},
            ]
        )
        proxy.fault(after=chance.randrange(25), **kind)
    push_image(image, repository, ["v1", "latest"])
    assert_there(upstream, repository, image, tmp_path)


def _digests(image: Image) -> list[str]:
    return [layer.descriptor.digest for layer in image.layers]
