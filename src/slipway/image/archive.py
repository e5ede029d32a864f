"""An image as a tar that `docker load` reads: Docker's archive format, streamed, reproducible."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import tempfile
from pathlib import Path
from typing import BinaryIO

from slipway.image.layer import MTIME
from slipway.image.layout import storage_errors
from slipway.image.model import Image, Layer, canonical_json


def write_docker_archive(image: Image, names: list[str], path: Path) -> None:
    """Write `image` under `names` (`repository:tag`) to `path`; there is no half-written file.

    Layers are stored uncompressed, as Docker 20.10 wants them. The id that Docker shows is the
    digest of the config.
    """
    with storage_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, scratch = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        try:
            with (
                os.fdopen(descriptor, "wb") as file,
                tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive,
            ):
                config = f"{image.config_descriptor.digest.removeprefix('sha256:')}.json"
                _add(archive, config, io.BytesIO(image.config_bytes), len(image.config_bytes))
                members = []
                for layer in image.layers:
                    member = f"{layer.diff_id.removeprefix('sha256:')}.tar"
                    if member not in members:
                        _add_layer(archive, member, layer)
                    members.append(member)
                manifest = canonical_json(
                    [{"Config": config, "RepoTags": names, "Layers": members}]
                )
                _add(archive, "manifest.json", io.BytesIO(manifest), len(manifest))
            os.chmod(scratch, 0o644)
            os.replace(scratch, path)
        except BaseException:
            Path(scratch).unlink(missing_ok=True)
            raise


def _add_layer(archive: tarfile.TarFile, member: str, layer: Layer) -> None:
    # A tar member's size stands before its bytes, so the layer is unpacked once to be measured.
    with layer.open() as blob, gzip.open(blob) as plain, tempfile.TemporaryFile() as scratch:
        while chunk := plain.read(1 << 20):
            scratch.write(chunk)
        size = scratch.tell()
        scratch.seek(0)
        _add(archive, member, scratch, size)


def _add(archive: tarfile.TarFile, name: str, stream: BinaryIO, size: int) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mtime, info.mode = size, MTIME, 0o644
    archive.addfile(info, stream)
