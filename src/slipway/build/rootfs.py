"""A Debian rootfs as a base, for where no registry can be reached: by mmdebstrap, reproducible."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

from slipway.build.matrix import Rootfs, Variant
from slipway.errors import BaseError, ToolMissingError
from slipway.image.descriptor import LAYER_GZIP, Descriptor
from slipway.image.layer import MTIME, Packer, layer_key
from slipway.image.layout import LayoutStore, storage_errors
from slipway.image.model import Image, Layer

# Part of a rootfs's name: change it when equal settings make another rootfs.
_RECIPE = 4

# Merges /usr from the start, so that usrmerge, which would bring all of perl, is not needed.
_MERGED_USR = "/usr/share/mmdebstrap/hooks/merged-usr"

# What nobody reads inside a container.
_EXCLUDED = ("doc", "man", "info", "locale", "lintian", "bash-completion")


def origin_of(variant: Variant, rootfs: Rootfs) -> str:
    """What a rootfs is called: its suite, and a key of what it is made of."""
    content = [_RECIPE, rootfs.suite, rootfs.packages, str(variant.platform)]
    return f"rootfs {rootfs.suite} {layer_key('rootfs', content)[:12]}"


def make(store: LayoutStore, variant: Variant, rootfs: Rootfs, cache: Path) -> Image:
    """The rootfs as an image of one layer in `store`, from the cache or by mmdebstrap.

    The cache lies outside the checkout, so that every clone on a machine has the same base.

    Raises:
        ToolMissingError: mmdebstrap is not installed, and the cache has no such rootfs.
        BaseError: mmdebstrap failed.
    """
    origin = origin_of(variant, rootfs)
    kept = LayoutStore(cache / "rootfs")
    image = kept.read_image(origin)
    if image is None:
        image = Image(
            config={
                "architecture": variant.platform.architecture,
                "os": variant.platform.os,
                "config": {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin"]},
            },
            layers=(_itemised(_debootstrap(kept, variant, rootfs)),),
        )
        kept.write_image(image, [origin], move=True)
    for layer in image.layers:
        _share(kept, store, layer.descriptor)
    return replace(image, layers=tuple(replace(layer, source=store) for layer in image.layers))


def _itemised(layer: Layer) -> Layer:
    from slipway.image import contents

    return contents.note_packages(layer, contents.packages(contents.read([layer])))


def _share(source: LayoutStore, target: LayoutStore, blob: Descriptor) -> None:
    """Let two stores have a blob: one file where they lie on one file system, else a copy."""
    path = target.blob_path(blob.digest)
    if path.exists():
        return
    with storage_errors(target.root):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source.blob_path(blob.digest), path)
        except OSError:  # another file system, or one without links
            target.copy(Layer(blob, "", source))


def _debootstrap(store: LayoutStore, variant: Variant, rootfs: Rootfs) -> Layer:
    program = shutil.which("mmdebstrap")
    if program is None:
        raise ToolMissingError("mmdebstrap is not installed", "apt-get install mmdebstrap")
    # PYTHONPYCACHEPREFIX in the containers makes the interpreter pass by these .pyc.
    stdlib = f"/usr/lib/{rootfs.python.rpartition('/')[2]}"
    command = [
        program,
        "--quiet",
        "--variant=essential",
        f"--architectures={variant.platform.architecture}",
        f"--include={','.join(rootfs.packages)}",
        "--format=tar",
        "--skip=output/dev",
        *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in _EXCLUDED),
        f"--hook-dir={_MERGED_USR}",
        f'--customize-hook=find "$1"{stdlib} -name __pycache__ -prune -exec rm -rf {{}} +',
        '--customize-hook=rm -rf "$1"/var/log/* "$1"/var/cache/* "$1"/var/lib/apt '
        '"$1"/etc/apt/sources.list* "$1"/etc/resolv.conf "$1"/etc/hostname',
        rootfs.suite,
        "-",
    ]
    env = {**os.environ, "SOURCE_DATE_EPOCH": str(MTIME), "LC_ALL": "C.UTF-8"}
    with store.writer() as blob:
        packer = Packer(blob)
        with subprocess.Popen(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            while chunk := process.stdout.read(1 << 20):
                packer.write(chunk)
            said = process.stderr.read().decode(errors="replace").strip()
        if process.returncode:
            errors = [line[3:] for line in said.splitlines() if line.startswith("E: ")]
            reason = (errors[0] if errors else said)[:300]
            remedy = "check that apt can reach its mirror (apt-get update) and the disk has room"
            if "chroot mode" in reason:
                remedy = (
                    "give this user subordinate ids (usermod --add-subuids 100000-165535 "
                    "--add-subgids 100000-165535 $USER; apt-get install uidmap), or run it as root"
                )
            raise BaseError(f"mmdebstrap could not make a {rootfs.suite} rootfs: {reason}", remedy)
        diff_id = packer.close()
    descriptor = Descriptor(LAYER_GZIP, blob.digest, blob.size)
    created_by = f"mmdebstrap {rootfs.suite} {' '.join(rootfs.packages)}"
    return Layer(descriptor, diff_id, store, created_by=created_by)
