"""The folder that Docker's or buildah's build of a variant reads: all of it made here, none of it
the working tree.

So what git ignores never travels, modes and times are those of every other build, and the layout of
the image is decided in one place for all builders.
"""

from __future__ import annotations

import os
import shutil
import sys
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from slipway.build import source
from slipway.build.assemble import content_name, skeleton, source_metadata
from slipway.build.git import Checkout
from slipway.build.plan import Plan
from slipway.errors import ToolMissingError
from slipway.image.layer import MTIME, File, Symlink
from slipway.image.layout import storage_errors

# pip's own name for each setting in its configuration file.
_PIP_SETTINGS = (
    "index-url",
    "extra-index-url",
    "find-links",
    "no-index",
    "trusted-host",
    "proxy",
    "timeout",
)


def write_dependencies(plan: Plan, cache: Path, folder: Path) -> None:
    """What the dependencies are made of: the venv's skeleton, the lock, pip, the Dockerfile."""
    venv = plan.engine.venv.lstrip("/")
    with storage_errors(folder):
        _write(folder / "venv", skeleton(plan), venv)
        (folder / "lock.txt").write_text(
            "".join(
                f"{pin.name}=={pin.version} {' '.join(f'--hash={h}' for h in sorted(pin.hashes))}\n"
                for _, pin in sorted(plan.lock.pins.items())
            )
        )
        shutil.copyfile(_pip(cache), folder / "pip.zip")
        shutil.copyfile(plan.root / plan.variant.dockerfile, folder / "Dockerfile")


def write_source(checkout: Checkout, plan: Plan, folder: Path) -> dict[str, str]:
    """The source and its metadata; gives the build arguments that depend on them."""
    metadata = source_metadata(plan)
    root = plan.engine.root.lstrip("/")
    with storage_errors(folder), checkout.snapshot(plan.engine.source) as (snapshot, tree):
        entries = snapshot.ls_tree(tree)
        _write(folder / "source", metadata, root)
        _write(folder / "source", source.files(snapshot, entries, plan.engine), root)
        shutil.copyfile(plan.root / "docker" / "Dockerfile.fast", folder / "Dockerfile.fast")
        compression = plan.matrix.compression
        keys = [p.key for p in source.parts(snapshot, tree, plan.engine, metadata, compression)]
    return {"SOURCE": plan.engine.root, "CONTENT": content_name(plan, keys)}


def arguments(plan: Plan, base: str) -> dict[str, str]:
    """The build arguments that decide the dependencies."""
    return {"BASE": base, "VENV": plan.engine.venv, **plan.variant.env, **plan.variant.args}


def pip_configuration(environment: Mapping[str, str]) -> str:
    """pip's settings in `environment` as a configuration file.

    It is mounted while pip runs and is in no layer, history or label of the image.
    """
    lines = ["[global]"]
    for setting in _PIP_SETTINGS:
        if value := environment.get(f"PIP_{setting.upper().replace('-', '_')}"):
            lines.append(f"{setting} = {value}")
    return "\n".join(lines) + "\n"


def _write(folder: Path, entries: Iterable[File | Symlink], root: str) -> None:
    """Write entries below `folder`, their paths taken from `root`; equal content, equal files."""
    folder.mkdir(parents=True, exist_ok=True)
    for entry in entries:
        path = folder / Path(entry.path).relative_to(root)
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(entry, Symlink):
            path.unlink(missing_ok=True)
            path.symlink_to(entry.target)
        else:
            path.write_bytes(entry.data)
            path.chmod(0o755 if entry.executable else 0o644)
        os.utime(path, (MTIME, MTIME), follow_symlinks=False)
    for path in (folder, *folder.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)
            os.utime(path, (MTIME, MTIME))


def _pip(cache: Path) -> Path:
    """The pip that runs here as one file, which any Python can start without installing it.

    Raises:
        ToolMissingError: this Python has no pip.
    """
    try:
        import pip
    except ImportError as error:
        raise ToolMissingError(
            f"{sys.executable} has no pip, which the build takes along", "python -m ensurepip"
        ) from error
    path = cache / f"pip-{pip.__version__}.zip"
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        scratch = path.with_suffix(f".{os.getpid()}")
        package = Path(pip.__path__[0])
        with zipfile.ZipFile(scratch, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in sorted(package.rglob("*")):
                if file.is_file() and "__pycache__" not in file.parts:
                    info = zipfile.ZipInfo(str(file.relative_to(package.parent)))
                    archive.writestr(info, file.read_bytes(), zipfile.ZIP_DEFLATED)
        scratch.replace(path)
    return path
