"""What a push of one edited layer costs: requests, steps in sequence, seconds.

Against docker-registry on loopback, directly and through a relay of a given round trip and
bandwidth, for images of several numbers of layers. The client runs in this process; start-up of
Python is not part of it. Run: `python bench/registry_push.py [--runs 5] [--layers 5,25,100]`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from slipway.image.descriptor import LAYER_GZIP, Platform  # noqa: E402
from slipway.image.layout import LayoutStore  # noqa: E402
from slipway.image.model import Image, Layer  # noqa: E402
from slipway.image.registry import Registry, pull_image, push_image  # noqa: E402
from support.docker_registry import docker_registry  # noqa: E402
from support.registries import FaultProxy, serving  # noqa: E402

LAYER_BYTES = 400_000  # a compressed source layer of one package (research: 0.33 to 0.40 MB)


@dataclass
class Link:
    """A network: `rtt` in seconds, `rate` in bytes per second (each way, all connections)."""

    rtt: float
    rate: float

    async def relay(self, upstream: str) -> None:
        """Relay TCP to `upstream` for ever; prints its port."""
        busy = {"up": 0.0, "down": 0.0}

        async def pump(
            name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, late: float
        ) -> None:
            queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

            async def deliver() -> None:
                while True:
                    due, data = await queue.get()
                    await asyncio.sleep(max(0.0, due - time.monotonic()))
                    if not data:
                        writer.close()
                        return
                    writer.write(data)

            task = asyncio.create_task(deliver())
            begin = time.monotonic() + late
            while True:
                try:
                    data = await reader.read(16384)
                except ConnectionError:
                    data = b""
                now = max(time.monotonic(), begin)
                busy[name] = max(busy[name], now) + len(data) / self.rate
                queue.put_nowait((busy[name] + self.rtt / 2, data))
                if not data:
                    break
            await task

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            host, _, number = upstream.partition(":")
            there, back = await asyncio.open_connection(host, int(number))
            # The handshake takes a round trip, which connecting to the relay does not show.
            up = pump("up", reader, back, self.rtt)
            await asyncio.gather(up, pump("down", there, writer, 0.0), return_exceptions=True)

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        print(server.sockets[0].getsockname()[1], flush=True)
        async with server:
            await server.serve_forever()

    @contextmanager
    def to(self, upstream: str) -> Iterator[str]:
        """The address of a relay, a process of its own, while the block runs."""
        command = [sys.executable, __file__, "--rtt-ms", str(self.rtt * 1e3)]
        command += ["--mbit", str(self.rate * 8 / 1e6), "--relay", upstream]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            yield f"127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()
            process.wait()


class Case:
    """An image of `layers` layers, published, and edits of its last one."""

    def __init__(self, store: LayoutStore, host: str, layers: int) -> None:
        self.store, self.name = store, f"bench/l{layers}"
        self.image = Image(
            {"os": "linux", "architecture": "amd64"},
            tuple(self.layer() for _ in range(layers)),
        )
        self.count = 0
        push_image(self.image, Registry(host).repository(self.name), ["v0", "latest"])

    def layer(self) -> Layer:
        blob = self.store.put(os.urandom(LAYER_BYTES), LAYER_GZIP)
        return Layer(blob, blob.digest, self.store)

    def edit(self, host: str, *, warm: bool) -> float:
        """Seconds from the previous manifest's request to the alias, by a client of its own."""
        self.count += 1
        repository = Registry(host).repository(self.name)
        edited = replace(self.image, layers=(*self.image.layers[:-1], self.layer()))
        if warm:
            repository.warm()
        begin = time.perf_counter()
        previous = repository.manifest("latest")
        assert previous is not None
        known = {layer.descriptor.digest for layer in self.image.layers}
        report = push_image(
            edited, repository, [f"v{self.count}-{time.time_ns()}", "latest"], known=known
        )
        assert report.bytes_uploaded == LAYER_BYTES + edited.config_descriptor.size
        self.image = edited
        return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--layers", default="5,25,100")
    parser.add_argument("--rtt-ms", type=float, default=20.0)
    parser.add_argument("--mbit", type=float, default=100.0)
    parser.add_argument("--relay", help=argparse.SUPPRESS)
    options = parser.parse_args()
    link = Link(options.rtt_ms / 1e3, options.mbit * 1e6 / 8)
    if options.relay:
        asyncio.run(link.relay(options.relay))
    print(
        f"medians of {options.runs}; one layer of {LAYER_BYTES / 1e6:.1f} MB edited; seconds from "
        "GET of the previous manifest to the alias"
    )
    far = f"{options.rtt_ms:g} ms, {options.mbit:g} Mbit/s"
    print(
        f"| layers | requests | in sequence | loopback s | {far} s | the same, connected ahead s |"
    )
    print("| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        store = LayoutStore(Path(folder) / "store")
        with docker_registry(Path(folder) / "registry") as host, link.to(host) as slow:
            for layers in map(int, options.layers.split(",")):
                case = Case(store, host, layers)
                case.edit(host, warm=False)
                with serving(FaultProxy(host)) as proxy:
                    proxy.delay = 0.1
                    case.edit(proxy.host, warm=False)
                    requests, depth = len(proxy.seen), proxy.depth()
                near = [case.edit(host, warm=False) for _ in range(options.runs)]
                cold = [case.edit(slow, warm=False) for _ in range(options.runs)]
                warm = [case.edit(slow, warm=True) for _ in range(options.runs)]
                middle = [f"{statistics.median(times):.3f}" for times in (near, cold, warm)]
                print(f"| {layers} | {requests} | {depth} | {' | '.join(middle)} |", flush=True)
            check = LayoutStore(Path(folder) / "check")
            pulled = pull_image(
                Registry(host).repository(case.name), "latest", check, Platform("linux", "amd64")
            )
            assert pulled.digest == case.image.digest


if __name__ == "__main__":
    main()
