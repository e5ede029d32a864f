"""What must be true of this machine before anything of a deployment is touched."""

from __future__ import annotations

import errno
import socket
from collections.abc import Collection, Mapping
from pathlib import Path, PurePosixPath

from slipway.deploy.compose import ComposeFile, ComposeService, Mount
from slipway.deploy.engine import engine_of
from slipway.errors import DeploymentError


def require_settings(file: ComposeFile, missing: Mapping[str, str]) -> None:
    """Refuse a deployment whose variables are not all set.

    Args:
        file: the deployment.
        missing: variables without a value, and what each is for.
    """
    if missing:
        name, purpose = next(iter(missing.items()))
        how = "--model-dir PATH, or " if name == "MODEL_DIR" else ""
        raise DeploymentError(
            f"{file.project} needs {name}: {purpose}", f"give it: {how}--env {name}=VALUE"
        )


def require_model(file: ComposeFile, user: str) -> None:
    """Refuse a deployment whose model is not where its command looks for it.

    Args:
        file: the deployment, its variables settled.
        user: numeric `uid[:gid]` that the image runs as; "" or 0 is root and reads everything.

    Raises:
        DeploymentError: a folder or the model is missing, or the user cannot read it.
    """
    for service in file.services:
        for mount in service.mounts:
            if mount.source.startswith("/") and not Path(mount.source).exists():
                raise DeploymentError(
                    f"{service.name} mounts {mount.source}, which does not exist",
                    "choose the model's folder: --model-dir PATH",
                )
        found = _model_on_host(service)
        if found is None:
            continue
        mount, path = found
        if not path.exists():
            raise DeploymentError(
                f"{service.name} loads {path}, which does not exist",
                f"choose the model: --model-dir FILE.gguf, or a folder{_nearby(path)}",
            )
        blocked = _unreadable(Path(mount.source), path, user)
        if blocked is not None:
            raise DeploymentError(
                f"the image runs as user {user}, who may not read {blocked}",
                f"chmod -R o+rX {mount.source}",
            )


def require_ports(file: ComposeFile, ours: Collection[int]) -> None:
    """Refuse a deployment whose ports others hold.

    Args:
        file: the deployment, its variables settled.
        ours: ports that its own running containers hold.

    Raises:
        DeploymentError: naming the port.
    """
    for service in file.services:
        for port in service.ports:
            if port.published is None or port.published in ours:
                continue
            address = port.address or "0.0.0.0"
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            with socket.socket(family) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((address, port.published))
                except OSError as error:
                    why = {
                        errno.EADDRINUSE: "is in use",
                        errno.EADDRNOTAVAIL: "is no address of this machine",
                    }.get(error.errno or 0, f"cannot be had ({error.strerror})")
                    place = f"{address}:{port.published}"
                    raise DeploymentError(
                        f"{service.name} is to listen on {place}, which {why}",
                        "choose another: --env PORT=NUMBER (and --env BIND=ADDRESS)",
                    ) from None


def locate_model(path: Path) -> tuple[Path, str]:
    """The folder to mount for a model and the model's name in it; "" is the folder itself.

    Symbolic links are followed only as far as they stay in the folder: where a file's target lies
    elsewhere (a download cache of blobs and links), the nearest folder that holds both is mounted.

    Raises:
        DeploymentError: there is nothing at `path`.
    """
    import os

    if not path.exists():
        raise DeploymentError(
            f"there is no model at {path}", "make sure of the path; `keel models fetch` prints one"
        )
    path = Path(os.path.abspath(path))
    folder = path if path.is_dir() else path.parent
    files = [entry for entry in path.iterdir() if entry.is_file()] if path.is_dir() else [path]
    folder = folder.resolve()
    targets = [str(file.resolve()) for file in files] or [str(folder)]
    mounted = Path(os.path.commonpath([str(folder), *targets]))
    inside = folder.relative_to(mounted) / ("" if path.is_dir() else path.name)
    return mounted, "" if str(inside) == "." else str(inside)


def _model_on_host(service: ComposeService) -> tuple[Mount, Path] | None:
    command = engine_of(service.words)
    if command is None:
        return None
    model = PurePosixPath(command.model)
    for mount in service.mounts:
        if mount.source.startswith("/") and model.is_relative_to(mount.target):
            return mount, Path(mount.source) / model.relative_to(mount.target)
    return None


def _unreadable(top: Path, path: Path, user: str) -> Path | None:
    """The first folder or file from `top` down to `path` that the user may not enter or read."""
    uid, _, gid = user.partition(":")
    if not uid.isdigit() or int(uid) == 0:
        return None
    real = path.resolve()
    chain = [top, *(parent for parent in reversed(real.parents) if top in parent.parents), real]
    for entry in chain:
        status = entry.stat()
        shift = 6 if status.st_uid == int(uid) else 3 if str(status.st_gid) == gid else 0
        need = 0o5 if entry.is_dir() else 0o4
        if (status.st_mode >> shift) & need != need:
            return entry
    return None


def _nearby(path: Path) -> str:
    """What there is instead, for the remedy."""
    names = (
        sorted(entry.name for entry in path.parent.glob("*.gguf")) if path.parent.is_dir() else []
    )
    return f"; {path.parent} has {', '.join(names[:5])}" if names else ""
