"""An image as a tar that `docker load` reads: Docker's archive format, streamed, reproducible."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import tempfile
from pathlib import Path
from typing import BinaryIO

from slipway.errors import IntegrityError
from slipway.image.layer import MTIME
from slipway.image.layout import storage_errors
from slipway.image.model import Image, canonical_json


def write_docker_archive(image: Image, names: list[str], path: Path) -> None:
    """Write `image` under `names` (`repository:tag`) to `path`; there is no half-written file.

    Layers stay compressed as they are: `docker load` unpacks gzip by itself. The id that Docker
    shows is the digest of the config.

    Raises:
        IntegrityError: a layer's bytes are not what its descriptor says.
        StorageError: the disk is full or may not be written.
    """
    with storage_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, scratch = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        try:
            with (
                os.fdopen(descriptor, "wb") as file,
                tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive,
            ):
                config = f"{_hex(image.config_descriptor.digest)}.json"
                _add(archive, config, io.BytesIO(image.config_bytes), len(image.config_bytes))
                members: list[str] = []
                for layer in image.layers:
                    member = f"{_hex(layer.descriptor.digest)}.tar.gz"
                    if member not in members:
                        with layer.open() as blob:
                            _add(archive, member, blob, layer.descriptor.size)
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


def _hex(digest: str) -> str:
    return digest.partition(":")[2]


class _Hashed:
    """A stream that is hashed while it is read."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.hash = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self.hash.update(data)
        return data


def _add(archive: tarfile.TarFile, name: str, stream: BinaryIO, size: int) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mtime, info.mode = size, MTIME, 0o644
    hashed = _Hashed(stream)
    archive.addfile(info, hashed)
    if name != "manifest.json" and hashed.hash.hexdigest() != name.partition(".")[0]:
        raise IntegrityError(f"blob sha256:{name.partition('.')[0]} is damaged")
