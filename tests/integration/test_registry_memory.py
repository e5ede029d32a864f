"""A layer of 1 GB goes up and comes down in little memory, through a limit as well."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipway.image.descriptor import LAYER_TAR
from slipway.image.layout import LayoutStore
from slipway.image.model import Image, Layer, sha256
from support.docker_registry import docker_registry
from support.registries import FaultProxy, serving

pytestmark = pytest.mark.slow

SOURCE = Path(__file__).resolve().parents[2] / "src"
SIZE = 1 << 30
LIMIT = 150 << 20  # bytes of resident memory (issue 5, "Must reach")
MOVE = """
import sys
from pathlib import Path
from slipway.image.descriptor import Platform
from slipway.image.layout import LayoutStore
from slipway.image.registry import Registry, pull_image, push_image
what, folder, host = sys.argv[1:]
store, repository = LayoutStore(Path(folder)), Registry(host).repository("team/keel")
if what == "push":
    push_image(store.read_image("v1"), repository, ["v1"])
else:
    pull_image(repository, "v1", store, Platform("linux", "amd64"))
# Not getrusage: ru_maxrss is handed on through exec, so it may be the peak of the test process.
[peak] = [x for x in open("/proc/self/status") if x.startswith("VmHWM:")]
print(int(peak.split()[1]) * 1024)
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LayoutStore]:
    """An image with one layer of 1 GB: a hole on the disk, but for its first block."""
    found = LayoutStore(tmp_path_factory.mktemp("large") / "store")
    head = os.urandom(1 << 20)
    digest = hashlib.sha256(head)
    for _ in range(SIZE // (1 << 20) - 1):
        digest.update(bytes(1 << 20))
    blob = f"sha256:{digest.hexdigest()}"
    small = found.put(b"small", LAYER_TAR)
    path = found.blob_path(blob)
    with path.open("wb") as file:
        file.write(head)
        file.truncate(SIZE)
    layers = [
        Layer(type(small)(LAYER_TAR, blob, SIZE), blob, found),
        Layer(small, sha256(b"small"), found),
    ]
    found.write_image(Image({"os": "linux", "architecture": "amd64"}, tuple(layers)), ["v1"])
    yield found
    path.unlink()


def move(what: str, folder: Path, host: str) -> int:
    """Push or pull in a process of its own; gives its peak of resident memory (bytes)."""
    done = subprocess.run(
        [sys.executable, "-c", MOVE, what, str(folder), host],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_a_large_layer_needs_little_memory(store: LayoutStore, tmp_path: Path) -> None:
    with docker_registry(tmp_path / "registry") as host:
        assert move("push", store.root, host) < LIMIT
        assert move("pull", tmp_path / "other", host) < LIMIT


def test_a_large_layer_passes_a_limit_in_little_memory(store: LayoutStore, tmp_path: Path) -> None:
    with docker_registry(tmp_path / "registry") as host, serving(FaultProxy(host)) as proxy:
        proxy.fault(over=100_000_000, status=413, early=True, times=999)
        assert move("push", store.root, proxy.host) < LIMIT
        assert max(seen.length for seen in proxy.seen if seen.method == "PATCH") == 64 << 20
