"""The base of a variant: a registry's image where one can be reached, else a Debian rootfs.

A registry base is pinned by `docker/bases.lock.toml`; a rootfs by its own content. The choice is
made once and kept with its reason under `base-<variant>` in the local store, and, where images are
pushed, under `base-<variant>-<key12>` beside them, so that other machines build on the same one.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipway.build import rootfs as rootfses
from slipway.build.matrix import Variant
from slipway.errors import BaseError, NetworkError, RegistryError, ToolMissingError
from slipway.image.layout import LayoutStore
from slipway.image.model import Image
from slipway.image.reference import Reference

if TYPE_CHECKING:
    from slipway.build.remote import Remote
    from slipway.image.registry import Repository

LOCK = Path("docker/bases.lock.toml")
ORIGIN = "org.slipway.base.origin"
DIGEST = "org.slipway.base.digest"
PYTHON = "org.slipway.base.python"
WHY = "org.slipway.base.why"


@dataclass(frozen=True)
class Base:
    """What an image is built on.

    Attributes:
        digest: of its manifest; what the dependency key and the labels name.
        origin: `registry <reference>@<digest>` or `rootfs <suite> <key>`.
        python: path of its interpreter.
        why: one clause: why this one.
        image: its layers and config; None where only the digest was needed so far.
    """

    digest: str
    origin: str
    python: str
    why: str
    image: Image | None = None

    @property
    def name(self) -> str:
        """The label `org.opencontainers.image.base.name`: a reference, or `rootfs <suite> …`."""
        return self.origin.removeprefix("registry ")

    @property
    def noted(self) -> Image:
        """The image with annotations from which `_read` makes this base again."""
        assert self.image is not None
        notes = {ORIGIN: self.origin, DIGEST: self.digest, PYTHON: self.python, WHY: self.why}
        return replace(self.image, annotations=notes)


def tag(variant: Variant) -> str:
    """The name of a variant's base in the local store."""
    return f"base-{variant.name}"


def shared_tag(variant: Variant) -> str:
    """The name of a variant's rootfs beside pushed images, "" where the variant has none."""
    if variant.rootfs is None:
        return ""
    return f"{tag(variant)}-{rootfses.origin_of(variant, variant.rootfs).rpartition(' ')[2]}"


def locked_digest(root: Path, variant: Variant) -> str:
    """The digest that `docker/bases.lock.toml` has for the variant's reference, or ""."""
    try:
        table = tomllib.loads((root / LOCK).read_text()).get(variant.name, {})
    except FileNotFoundError:
        return ""
    except tomllib.TOMLDecodeError as error:
        raise BaseError(f"{LOCK}: {error}", "slipway image base --update") from error
    wanted = str(variant.base.reference)
    return str(table.get("digest", "")) if table.get("reference") == wanted else ""


def choose(
    root: Path,
    store: LayoutStore,
    variant: Variant,
    cache: Path,
    remote: Remote | None = None,
    *,
    update: bool = False,
) -> Base:
    """Which base it is: what was chosen before, what the lock pins, else what can be had.

    A base that the lock pins may come without its image: `fetch` brings it where it is needed.

    Args:
        remote: where images are pushed; a rootfs that another machine made is found there.
        update: choose again, even where a base is here.

    Raises:
        BaseError: neither a registry nor a rootfs could be had; the message says why for both.
    """
    locked = "" if update else locked_digest(root, variant)
    if not update and (found := _read(store.read_image(tag(variant)), variant, locked)):
        return found
    if locked:
        return _registry_base(variant, locked)
    if remote is not None and not update and variant.rootfs is not None:
        shared = _read(remote.image(shared_tag(variant)), variant, locked)
        if shared is not None:
            return replace(shared, why=f"{remote.repository} has it")
    try:
        found = _registry_base(variant, _resolve(variant))
    except (NetworkError, RegistryError) as error:
        return _rootfs_base(store, variant, cache, _reason(variant, error), error)
    return fetch(store, variant, found, cache, sparse=True)


def out_of_reach(variant: Variant, why: str) -> Base:
    """A base that cannot be had from here, for a plan of what would be done where it can."""
    return Base("", f"registry {variant.base.reference}", variant.base.python, why)


def mirrored(reference: Reference) -> Reference:
    """Where a base is taken from: `SLIPWAY_BASE_MIRROR` (`host[/prefix]`) for Docker Hub's.

    Labels and locks name the reference itself: a mirror is a matter of the network.
    """
    mirror = os.environ.get("SLIPWAY_BASE_MIRROR", "").strip("/")
    if not mirror or reference.registry != "docker.io":
        return reference
    host, _, prefix = mirror.partition("/")
    path = f"{prefix}/{reference.repository}".lstrip("/")
    return replace(reference, registry=host, repository=path)


def fetch(
    store: LayoutStore, variant: Variant, base: Base, cache: Path, *, sparse: bool = False
) -> Base:
    """`base` with its image; another base where it cannot be had.

    Args:
        sparse: leave a registry base's layers where they are: they are only to be pushed on.

    Raises:
        BaseError: it cannot be had, and no rootfs can be made.
    """
    whole = base.image is not None and all(
        store.has(layer.descriptor.digest) for layer in base.image.layers
    )
    if base.image is None or not (whole or sparse):
        if not base.origin.startswith("registry"):
            return _rootfs_base(store, variant, cache, base.why)
        try:
            base = replace(base, image=_pull(store, variant, base.digest, sparse))
        except (NetworkError, RegistryError) as error:
            return _rootfs_base(store, variant, cache, _reason(variant, error), error)
    store.write_image(base.noted, [tag(variant)], move=True, sparse=sparse)
    return base


def _pull(store: LayoutStore, variant: Variant, digest: str, sparse: bool) -> Image:
    from slipway.build.remote import Remote
    from slipway.image.registry import pull_image

    repository = _repository(variant)
    if not sparse:
        return pull_image(repository, digest, store, variant.platform)
    image = Remote(repository, store).image(digest)
    if image is None:
        raise RegistryError(f"{repository} has no image {digest}")
    return image


def _read(image: Image | None, variant: Variant, locked: str) -> Base | None:
    """A base from its noted image, where it still is what the repository asks for."""
    if image is None:
        return None
    notes = image.annotations
    origin, digest = notes.get(ORIGIN, ""), notes.get(DIGEST, "")
    if not digest:
        return None
    if origin.startswith("registry"):
        reference = origin.removeprefix("registry ").partition("@")[0]
        if reference != str(variant.base.reference) or locked not in ("", digest):
            return None
    elif variant.rootfs is None or origin != rootfses.origin_of(variant, variant.rootfs):
        return None
    return Base(digest, origin, notes.get(PYTHON, ""), notes.get(WHY, ""), image)


def _registry_base(variant: Variant, digest: str) -> Base:
    reference = variant.base.reference
    origin = f"registry {reference}@{digest}"
    return Base(digest, origin, variant.base.python, f"{reference.registry} has it")


def _reason(variant: Variant, error: NetworkError | RegistryError) -> str:
    said = "refused" if isinstance(error, RegistryError) else "could not be reached"
    return f"{variant.base.reference.registry} {said}"


def _rootfs_base(
    store: LayoutStore,
    variant: Variant,
    cache: Path,
    reason: str,
    error: NetworkError | RegistryError | None = None,
) -> Base:
    if variant.rootfs is None:
        what = error.what if error else reason
        raise BaseError(
            f"{variant.base.reference} cannot be had: {what}", error.remedy if error else ""
        ) from error
    try:
        image = rootfses.make(store, variant, variant.rootfs, cache)
    except ToolMissingError as missing:
        raise BaseError(f"{reason}, and {missing.what}", missing.remedy) from missing
    origin = rootfses.origin_of(variant, variant.rootfs)
    base = Base(image.digest, origin, variant.rootfs.python, reason, image)
    store.write_image(base.noted, [tag(variant)], move=True)
    return base


def _repository(variant: Variant) -> Repository:
    from slipway.image.registry import Registry

    reference = mirrored(variant.base.reference)
    return Registry(reference.registry, attempts=1).repository(reference.repository)


def _resolve(variant: Variant) -> str:
    """The digest that the variant's reference has now, for its platform.

    Raises:
        RegistryError: there is no such image.
        NetworkError: the registry cannot be reached.
    """
    from slipway.build.remote import platform_digest

    reference, platform = variant.base.reference, variant.platform
    digest = platform_digest(_repository(variant), reference.identifier, platform)
    if not digest:
        raise RegistryError(f"{reference} does not exist, or not for {platform}")
    return digest


def record(root: Path, variant: Variant, base: Base) -> bool:
    """Write a registry base's digest into `docker/bases.lock.toml`; False where there is none."""
    if not base.origin.startswith("registry"):
        return False
    path = root / LOCK
    tables: dict[str, Mapping[str, Any]] = {}
    if path.exists():
        tables = tomllib.loads(path.read_text())
    tables[variant.name] = {"reference": str(variant.base.reference), "digest": base.digest}
    lines = ["# Written by `slipway image base --update`: what each base reference resolved to."]
    for name, table in sorted(tables.items()):
        lines += ["", f"[{name}]"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in sorted(table.items())]
    path.write_text("\n".join(lines) + "\n")
    return True
