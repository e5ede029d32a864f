"""The base of a variant: a registry's image where one can be reached, else a Debian rootfs.

The choice is made once, kept in the local store under `base-<variant>`, and said with its reason. A
registry base is pinned by `docker/bases.lock.toml`; a rootfs by its own content.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipway.build.matrix import Rootfs, Variant
from slipway.errors import BaseError, NetworkError, RegistryError, ToolMissingError
from slipway.image.descriptor import Descriptor, Platform
from slipway.image.layer import MTIME, GzipHasher, layer_key
from slipway.image.layout import LayoutStore, storage_errors
from slipway.image.model import Image, Layer

LOCK = Path("docker/bases.lock.toml")
ORIGIN = "org.slipway.base.origin"
PYTHON = "org.slipway.base.python"
WHY = "org.slipway.base.why"

# Part of a rootfs's name: change it when equal settings make another rootfs.
_RECIPE = 2

# What nobody reads inside a container.
_EXCLUDED = ("doc", "man", "info", "locale", "lintian", "bash-completion")


@dataclass(frozen=True)
class Base:
    """A base that is in the store.

    Attributes:
        image: its layers and config.
        origin: `registry <reference>` or `rootfs <suite>`.
        python: path of its interpreter.
        why: one clause: why this one.
    """

    image: Image
    origin: str
    python: str
    why: str

    @property
    def digest(self) -> str:
        """What the dependency key and the labels name."""
        return self.image.digest

    @property
    def name(self) -> str:
        """The label `org.opencontainers.image.base.name`: a reference, or `rootfs <suite> …`."""
        return self.origin.removeprefix("registry ")


def tag(variant: Variant) -> str:
    """The name of a variant's base in the store."""
    return f"base-{variant.name}"


def locked_digest(root: Path, variant: Variant) -> str:
    """The digest that `docker/bases.lock.toml` has for the variant's reference, or ""."""
    try:
        table = tomllib.loads((root / LOCK).read_text()).get(variant.name, {})
    except FileNotFoundError:
        return ""
    except tomllib.TOMLDecodeError as error:
        raise BaseError(f"{LOCK}: {error}") from error
    wanted = str(variant.base.reference)
    return str(table.get("digest", "")) if table.get("reference") == wanted else ""


def find(root: Path, store: LayoutStore, variant: Variant) -> Base | None:
    """The base that was chosen before, where it still is what the repository asks for."""
    image = store.read_image(tag(variant))
    if image is None:
        return None
    notes = image.annotations
    digest = locked_digest(root, variant)
    origin = notes.get(ORIGIN, "")
    if origin.startswith("registry") and digest and not origin.endswith(digest):
        return None
    if origin.startswith("rootfs") and (
        variant.rootfs is None or origin != rootfs_origin(variant, variant.rootfs)
    ):
        return None
    return Base(image, origin, notes.get(PYTHON, ""), notes.get(WHY, ""))


def ensure(
    root: Path, store: LayoutStore, variant: Variant, cache: Path, *, update: bool = False
) -> Base:
    """The variant's base, fetched or made where it is not here yet.

    Args:
        update: choose again, even where a base is here.

    Raises:
        BaseError: neither a registry nor a rootfs could be had; the message says why for both.
    """
    if not update and (found := find(root, store, variant)):
        return found
    reference = variant.base.reference
    try:
        image, digest = _pull(store, variant, locked_digest(root, variant))
        origin = f"registry {reference}@{digest}"
        base = Base(image, origin, variant.base.python, f"{reference.registry} has it")
    except (NetworkError, RegistryError) as error:
        if variant.rootfs is None:
            raise BaseError(f"{reference} cannot be had: {error.what}", error.remedy) from error
        reason = f"{reference.registry} could not be reached"
        try:
            image = _rootfs(store, variant, variant.rootfs, cache)
        except ToolMissingError as missing:
            raise BaseError(f"{reason}, and {missing.what}", missing.remedy) from missing
        origin = rootfs_origin(variant, variant.rootfs)
        base = Base(image, origin, variant.rootfs.python, reason)
    noted = Image(
        config=base.image.config,
        layers=base.image.layers,
        annotations={ORIGIN: base.origin, PYTHON: base.python, WHY: base.why},
        created=base.image.created,
    )
    store.write_image(noted, [tag(variant)], move=True)
    return Base(noted, base.origin, base.python, base.why)


def _pull(store: LayoutStore, variant: Variant, digest: str) -> tuple[Image, str]:
    from slipway.image.registry import Registry, pull_image

    reference = variant.base.reference
    repository = Registry(reference.registry, attempts=1).repository(reference.repository)
    if not digest:
        found = repository.resolve(reference.tag)
        if found is None:
            raise RegistryError(f"{reference} does not exist")
        digest = found.digest
    return pull_image(repository, digest, store, variant.platforms[0]), digest


def rootfs_origin(variant: Variant, rootfs: Rootfs) -> str:
    """What a rootfs is called: its suite, and a key of what it is made of."""
    content = [_RECIPE, rootfs.suite, rootfs.packages, str(variant.platforms[0])]
    key = layer_key("rootfs", content)
    return f"rootfs {rootfs.suite} {key[:12]}"


def _rootfs(store: LayoutStore, variant: Variant, rootfs: Rootfs, cache: Path) -> Image:
    """A Debian rootfs as an image of one layer, from the cache or by mmdebstrap.

    The cache lies outside the checkout, so that every clone on a machine has the same base.
    """
    origin = rootfs_origin(variant, rootfs)
    kept = LayoutStore(cache / "rootfs")
    image = kept.read_image(origin)
    if image is None:
        layer = _debootstrap(kept, rootfs, variant.platforms[0])
        image = Image(
            config={
                "architecture": variant.platforms[0].architecture,
                "os": variant.platforms[0].os,
                "config": {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin"]},
            },
            layers=(layer,),
        )
        kept.write_image(image, [origin], move=True)
    for layer in image.layers:
        _link(kept, store, layer.descriptor)
    return image


def _link(source: LayoutStore, target: LayoutStore, blob: Descriptor) -> None:
    """Share a blob between two stores of one file system, so that it need not be copied."""
    path = target.blob_path(blob.digest)
    if not path.exists():
        with storage_errors(target.root):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(source.blob_path(blob.digest), path)
            except OSError:
                return  # another file system: write_image copies it


def _debootstrap(store: LayoutStore, rootfs: Rootfs, platform: Platform) -> Layer:
    program = shutil.which("mmdebstrap")
    if program is None:
        raise ToolMissingError("mmdebstrap is not installed", "apt-get install mmdebstrap")
    # PYTHONPYCACHEPREFIX in the containers makes the interpreter pass by these .pyc.
    stdlib = f"/usr/lib/{rootfs.python.rpartition('/')[2]}"
    command = [
        program,
        "--quiet",
        "--variant=essential",
        f"--architectures={platform.architecture}",
        f"--include={','.join(rootfs.packages)}",
        "--format=tar",
        "--skip=output/dev",
        *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in _EXCLUDED),
        f'--customize-hook=find "$1"{stdlib} -name __pycache__ -prune -exec rm -rf {{}} +',
        '--customize-hook=rm -rf "$1"/var/log/* "$1"/var/cache/* "$1"/var/lib/apt '
        '"$1"/etc/resolv.conf "$1"/etc/hostname',
        rootfs.suite,
        "-",
    ]
    env = {**os.environ, "SOURCE_DATE_EPOCH": str(MTIME), "LC_ALL": "C.UTF-8"}
    with store.writer() as blob:
        gzip = GzipHasher(blob)
        with subprocess.Popen(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            while chunk := process.stdout.read(1 << 20):
                gzip.write(chunk)
            said = process.stderr.read().decode(errors="replace").strip()
        if process.returncode:
            errors = [line[3:] for line in said.splitlines() if line.startswith("E: ")]
            reason = errors[0] if errors else said
            raise BaseError(
                f"mmdebstrap could not make a {rootfs.suite} rootfs: {reason}",
                "check that apt can reach its mirror (apt-get update) and that the disk has room",
            )
        diff_id = gzip.close()
    descriptor = Descriptor("application/vnd.oci.image.layer.v1.tar+gzip", blob.digest, blob.size)
    created_by = f"mmdebstrap {rootfs.suite} {' '.join(rootfs.packages)}"
    return Layer(descriptor, diff_id, store, created_by=created_by)


def record(root: Path, variant: Variant, base: Base) -> bool:
    """Write a registry base's digest into `docker/bases.lock.toml`; False where there is none."""
    if not base.origin.startswith("registry"):
        return False
    path = root / LOCK
    tables: dict[str, Mapping[str, Any]] = {}
    if path.exists():
        tables = tomllib.loads(path.read_text())
    tables[variant.name] = {
        "reference": str(variant.base.reference),
        "digest": base.origin.rpartition("@")[2],
    }
    lines = ["# Written by `slipway image base --update`: what each base reference resolved to."]
    for name, table in sorted(tables.items()):
        lines += ["", f"[{name}]"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in sorted(table.items())]
    path.write_text("\n".join(lines) + "\n")
    return True
