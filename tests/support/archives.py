"""What `docker save` wrote, read by itself: config, and the files as an overlay shows them."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any, BinaryIO

from slipway.image import contents
from slipway.image.contents import Entry
from slipway.image.descriptor import Descriptor
from slipway.image.model import Layer, sha256


class _Bytes:
    """A blob held in memory."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def open(self, blob: Descriptor) -> BinaryIO:
        return io.BytesIO(self._data)


def read_docker_archive(path: Path) -> tuple[dict[str, Any], dict[str, Entry]]:
    """Config and files of the one image in a Docker archive."""
    with tarfile.open(path) as tar:

        def member(name: str) -> bytes:
            stream = tar.extractfile(name)
            assert stream is not None
            return stream.read()

        (manifest,) = json.loads(member("manifest.json"))
        config = json.loads(member(manifest["Config"]))
        layers = []
        for name in manifest["Layers"]:
            data = member(name)
            blob = Descriptor("application/vnd.oci.image.layer.v1.tar", sha256(data), len(data))
            layers.append(Layer(blob, blob.digest, _Bytes(data)))
    return config, contents.read(layers).files
