"""kill -9 at random moments of a push: no broken tag, and the next push succeeds.

`SLIPWAY_KILLS` sets how often (20 where it is not set).
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipway.image.descriptor import LAYER_GZIP, Platform
from slipway.image.layout import LayoutStore
from slipway.image.model import Image, Layer
from slipway.image.registry import Registry, Repository, pull_image
from support.docker_registry import docker_registry
from support.registries import FaultProxy, serving

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("SLIPWAY_KILLS", "20"))
SOURCE = Path(__file__).resolve().parents[2] / "src"
PUSH = """
import sys
from pathlib import Path
from slipway.image.layout import LayoutStore
from slipway.image.registry import Registry, push_image
store = LayoutStore(Path(sys.argv[1]))
image = store.read_image(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
push_image(image, Registry(sys.argv[3]).repository("team/keel"), [sys.argv[2], "latest"])
"""


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with docker_registry(tmp_path_factory.mktemp("registry")) as address:
        yield address


def make_image(store: LayoutStore, tag: str) -> Image:
    blobs = [store.put(os.urandom(400_000), LAYER_GZIP) for _ in range(4)]
    layers = tuple(Layer(blob, blob.digest, store) for blob in blobs)
    image = Image({"os": "linux", "architecture": "amd64"}, layers)
    store.write_image(image, [tag])
    return image


def start(store: LayoutStore, tag: str, host: str) -> subprocess.Popen[bytes]:
    """A pushing process that waits for a line."""
    process = subprocess.Popen(
        [sys.executable, "-c", PUSH, str(store.root), tag, host],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n", process.communicate()
    return process


def test_a_killed_push_leaves_no_broken_tag_and_does_not_hinder_the_next(
    upstream: str, tmp_path: Path
) -> None:
    store = LayoutStore(tmp_path / "store")
    chance = random.Random(7)
    killed = 0
    with serving(FaultProxy(upstream)) as proxy:
        proxy.delay = 0.005  # stretches the moments in which a push can be killed
        repository = Registry(upstream).repository("team/keel")
        make_image(store, "first")
        first = start(store, "first", proxy.host)
        begin = time.monotonic()
        assert first.communicate(b"\n", timeout=60)[1] == b""
        duration = time.monotonic() - begin
        for number in range(KILLS):
            tag = f"t{number}"
            image = make_image(store, tag)
            before = set(repository.tags())
            latest = repository.resolve("latest")
            process = start(store, tag, proxy.host)
            assert process.stdin is not None
            process.stdin.write(b"\n")
            process.stdin.flush()
            time.sleep(chance.uniform(0, duration))  # the random moment
            process.kill()
            process.communicate(timeout=20)
            # docker-registry lists a tag an instant before it can be read: see it at rest.
            proxy.settle()

            after = set(repository.tags())
            killed += process.returncode == -signal.SIGKILL
            assert after - before <= {tag}
            names = [tag] if tag in after else []
            for name in [*names, "latest"]:
                assert_whole(repository, name, tmp_path / f"check-{number}-{name}")
            found = repository.resolve("latest")
            assert found is not None
            assert latest is not None
            assert found.digest in {latest.digest, image.digest}
            if found.digest == image.digest:
                assert tag in after  # the alias never goes before the tag

            again = start(store, tag, upstream)
            assert again.communicate(b"\n", timeout=60)[1] == b""
            assert again.returncode == 0
            for name in (tag, "latest"):
                there = repository.resolve(name)
                assert there is not None
                assert there.digest == image.digest
        assert killed > KILLS / 2  # the others had ended before they were hit
        assert not list(store.root.rglob(".part-*"))


def assert_whole(repository: Repository, name: str, folder: Path) -> None:
    """Every blob of what `name` names is there and right."""
    pull_image(repository, name, LayoutStore(folder), Platform("linux", "amd64"))
