"""Wheels as entries of a layer: what pip would install, without executing anything of it.

The `installer` library decides what goes where; launchers, data files and RECORD are as it makes
them, so that pip inside the image sees what is installed. An arm64 image can be made on amd64.
"""

from __future__ import annotations

import base64
import io
import os
import stat
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import installer
from installer.destinations import WheelDestination
from installer.exceptions import InstallerError
from installer.records import Hash, RecordEntry
from installer.scripts import Script
from installer.sources import WheelFile
from installer.utils import Scheme, construct_record_file, fix_shebang

from slipway.build.matrix import Engine, Variant
from slipway.errors import IntegrityError
from slipway.image.contents import Package
from slipway.image.layer import File, LayerWriter, safe_path

if TYPE_CHECKING:
    from installer.scripts import ScriptSection


# A wheel that grows more than this is a bomb: real ones grow less than tenfold.
MAX_GROWTH = 200
_SMALL = 32 << 20


def unpack(
    wheels: Iterable[Path], engine: Engine, variant: Variant, writer: LayerWriter
) -> list[Package]:
    """Install wheels into the image's virtual environment, as entries of one layer.

    Gives what was installed.

    Launchers, data files and RECORD are as pip would have them (the `installer` library does it).

    Raises:
        IntegrityError: a wheel is damaged, holds a link or a path that leaves its folder, or two
            wheels hold one file.
    """
    installed = []
    for path in wheels:
        try:
            with zipfile.ZipFile(path) as archive:
                _check_growth(path, archive)
                for item in archive.infolist():
                    safe_path(item.filename.rstrip("/"), path.name)
                    if stat.S_ISLNK(item.external_attr >> 16):
                        raise IntegrityError(f"{path.name} holds a link: {item.filename!r}")
                destination = _Destination(engine, variant, writer, path.name, archive)
                wheel = WheelFile(archive)
                installer.install(wheel, destination, {"INSTALLER": b"slipway\n"})
                installed.append(Package.from_metadata(wheel.read_dist_info("METADATA")))
        except (zipfile.BadZipFile, InstallerError, ValueError, KeyError) as error:
            raise IntegrityError(f"{path.name} is not a usable wheel: {error}") from error
    return installed


def _check_growth(path: Path, archive: zipfile.ZipFile) -> None:
    unpacked = sum(item.file_size for item in archive.infolist())
    growth = unpacked // max(path.stat().st_size, 1)
    if unpacked > _SMALL and growth > MAX_GROWTH:
        raise IntegrityError(
            f"{path.name} would unpack to {unpacked >> 20} MiB, {growth} times its size"
        )


class _Destination(WheelDestination):
    """Where `installer` puts a wheel: the entries of a layer (its WheelDestination protocol)."""

    def __init__(
        self,
        engine: Engine,
        variant: Variant,
        writer: LayerWriter,
        wheel: str,
        archive: zipfile.ZipFile,
    ) -> None:
        venv = engine.venv.lstrip("/")
        site = f"{venv}/lib/python{variant.python}/site-packages"
        self._python = f"{engine.venv}/bin/python"
        self._schemes: dict[Scheme, str] = {
            Scheme("purelib"): site,
            Scheme("platlib"): site,
            Scheme("scripts"): f"{venv}/bin",
            Scheme("data"): venv,
            Scheme(
                "headers"
            ): f"{venv}/include/site/python{variant.python}/{wheel.partition('-')[0]}",
        }
        self._writer = writer
        self._wheel = wheel
        self._sizes: Mapping[str, int] = {
            item.filename: item.file_size for item in archive.infolist()
        }

    def write_file(
        self, scheme: Scheme, path: str | os.PathLike[str], stream: BinaryIO, is_executable: bool
    ) -> RecordEntry:
        name = f"{self._schemes[scheme]}/{safe_path(os.fspath(path), self._wheel)}"
        if scheme == "scripts":
            with fix_shebang(stream, self._python) as fixed:
                return self._put(os.fspath(path), name, io.BytesIO(fixed.read()), None, True)
        size = self._sizes.get(getattr(stream, "name", ""))
        return self._put(os.fspath(path), name, stream, size, is_executable)

    def write_script(
        self, name: str, module: str, attr: str, section: ScriptSection
    ) -> RecordEntry:
        _, data = Script(name, module, attr, section).generate(self._python, "posix")
        path = f"{self._schemes[Scheme('scripts')]}/{safe_path(name, self._wheel)}"
        return self._put(name, path, io.BytesIO(data), len(data), True)

    def finalize_installation(
        self,
        scheme: Scheme,
        record_file_path: str,
        records: Iterable[tuple[Scheme, RecordEntry]],
    ) -> None:
        def prefix(wanted: Scheme) -> str | None:
            if wanted == scheme:
                return None
            return os.path.relpath(self._schemes[wanted], self._schemes[scheme]) + "/"

        with construct_record_file(records, prefix) as stream:
            data = stream.read()
        self._writer.add(File(f"{self._schemes[scheme]}/{record_file_path}", data))

    def _put(
        self,
        path: str,
        name: str,
        stream: BinaryIO,
        size: int | None,
        executable: bool,
    ) -> RecordEntry:
        if size is None:
            data = stream.read()
            stream, size = io.BytesIO(data), len(data)
        digest = self._writer.file(name, stream, size, executable=executable)
        value = base64.urlsafe_b64encode(bytes.fromhex(digest)).decode().rstrip("=")
        return RecordEntry(path, Hash("sha256", value), size)


def launchers(project: Mapping[str, Any], engine: Engine) -> list[File]:
    """The engine's own console scripts, from `[project.scripts]`, as files of the image."""
    files = []
    for name, target in sorted(project.get("project", {}).get("scripts", {}).items()):
        module, _, attr = target.partition(":")
        if module.split(".")[0] == engine.package:
            _, data = Script(name, module, attr, "console").generate(
                f"{engine.venv}/bin/python", "posix"
            )
            files.append(File(f"{engine.venv.lstrip('/')}/bin/{name}", data, executable=True))
    return files
