"""From plan to image, without a daemon, root or a container.

Full: base, a skeleton of the virtual environment, dependencies; that is the deps image. The builder
`assemble` unpacks dependencies from wheels and executes nothing; `buildx` and `buildah` let a
Dockerfile make them (`dockerfile.py`). Then, on both paths: source layers and labels on top of it.
A layer whose key an earlier image has is taken from there.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from slipway.build import source, wheels
from slipway.build.git import Checkout
from slipway.build.plan import COMMIT, DEPENDENCY_KEY, INPUTS, Plan
from slipway.build.remote import CONFIG_COPY, Remote
from slipway.errors import LockError, StorageError
from slipway.image.contents import Package, note_packages
from slipway.image.layer import (
    LAYER_KEY,
    File,
    LayerWriter,
    Symlink,
    layer_key,
    write_layer,
)
from slipway.image.layout import LayoutStore
from slipway.image.model import (
    Image,
    Layer,
    append,
    canonical_json,
    sha256,
    with_config,
    with_labels,
)

USER = "10001:10001"

Say = Callable[[str], None]


@dataclass(frozen=True)
class Known:
    """Layers of earlier images by their key."""

    layers: Mapping[str, Layer]

    def __call__(self, key: str) -> Layer | None:
        return self.layers.get(key)


def known_layers(store: LayoutStore, plan: Plan, remote: Remote | None) -> Known:
    """Layers that the alias's image and the variant's deps images have, here or in a registry."""
    names = store.tags()
    wanted = [name for name in names if name.startswith(f"deps-{plan.variant.name}-")]
    wanted += [name for name in (*reversed(plan.other_aliases), plan.alias) if name in names]
    found: dict[str, Layer] = {}
    if remote is not None and (remote.publishing or plan.deps_tag not in names):
        found = remote.known_layers_of([plan.alias, *plan.other_aliases])
    for name in wanted:
        image = store.read_image(name)
        for layer in image.layers if image else ():
            if (key := layer.descriptor.annotations.get(LAYER_KEY)) and store.has(
                layer.descriptor.digest
            ):
                found[key] = layer
    return Known(found)


@dataclass(frozen=True)
class Assembled:
    """An image and the deps image that it stands on."""

    image: Image
    deps: Image


def assemble(
    checkout: Checkout,
    plan: Plan,
    store: LayoutStore,
    cache: Path,
    say: Say,
    remote: Remote | None = None,
    *,
    sparse: bool = False,
) -> Assembled:
    """Build the image of a plan into `store` (blobs and manifest; no tag).

    Args:
        remote: a repository whose layers are taken where the store lacks them.
        sparse: leave layers that `remote` has where they are, instead of bringing them here.

    Raises:
        SlipwayError: a lock, a wheel, the network or the disk stood in the way; the store stays as
            it was, but for blobs that nothing names.
    """
    known = known_layers(store, plan, remote)
    deps = store.read_image(plan.deps_tag) if plan.path == "fast" else None
    if deps is None and plan.path == "fast" and remote is not None:
        deps = remote.image(plan.deps_tag)
    if deps is None:
        deps = deps_image(plan, store, cache, Known({}) if plan.forced else known, say)
        if not sparse or all(store.has(layer.descriptor.digest) for layer in deps.layers):
            # A name here promises the whole image; one that is spread out lives in the registry.
            store.write_image(deps, [plan.deps_tag], move=True)
    metadata = source_metadata(plan)
    with checkout.snapshot(plan.engine.source) as (snapshot, tree):
        layers = source.layers(
            snapshot, tree, plan.engine, metadata, store, known, plan.matrix.compression
        )
    created = datetime.fromtimestamp(plan.commit_time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    notes = {COMMIT: plan.commit, DEPENDENCY_KEY: plan.key.value}
    image = replace(append(deps, layers), created=created, annotations=notes)
    if plan.engine.venv:
        image = with_config(
            image, Env=[*image.config["config"]["Env"], _bytecode_folder(plan, layers)]
        )
    image = with_labels(image, labels(plan, created))
    store.write_image(image, sparse=sparse)
    return Assembled(image, deps)


def source_metadata(plan: Plan) -> list[File]:
    """What lies beside the source, so that the engine is found as an installed distribution."""
    if not plan.engine.venv:
        return []
    table = plan.project.get("project", {})
    scripts = {
        name: target
        for name, target in table.get("scripts", {}).items()
        if target.startswith(f"{plan.engine.package}.")
    }
    name = table.get("name", plan.engine.name)
    return source.dist_info(plan.engine, name, plan.version.text, scripts)


def content_name(plan: Plan, source_keys: Iterable[str]) -> str:
    """A name for what the image holds, known before it is built."""
    return sha256(" ".join([plan.key.value, *source_keys]).encode())[7:19]


def _bytecode_folder(plan: Plan, layers: Iterable[Layer]) -> str:
    """Where a container keeps the .pyc that it makes, since none travels in a layer.

    The folder is named after the image's content. A .pyc is believed by its source's time and size,
    and the time is one constant here: in a folder that images share, a same-size edit would run the
    old code.
    """
    keys = (layer.descriptor.annotations[LAYER_KEY] for layer in layers)
    return f"PYTHONPYCACHEPREFIX=/tmp/pycache-{content_name(plan, keys)}"


def labels(plan: Plan, created: str) -> dict[str, str]:
    """What the image says of itself; never the wall clock, so that equal inputs give one digest."""
    table = plan.project.get("project", {})
    source = table.get("urls", {}).get("Source", "")
    return {
        **({"org.opencontainers.image.source": source} if source else {}),
        "org.opencontainers.image.title": plan.engine.name,
        "org.opencontainers.image.version": plan.version.text,
        "org.opencontainers.image.revision": plan.commit,
        "org.opencontainers.image.created": created,
        "org.opencontainers.image.licenses": str(table.get("license", "")),
        "org.opencontainers.image.base.name": plan.base.name,
        "org.opencontainers.image.base.digest": plan.base.digest,
        DEPENDENCY_KEY: plan.key.value,
        "org.slipway.variant": plan.variant.name,
        COMMIT: plan.commit,
    }


def deps_image(plan: Plan, store: LayoutStore, cache: Path, known: Known, say: Say) -> Image:
    """Base and dependencies, with everything in the config but the labels.

    Only wheels of layers that are not known are fetched.
    """
    base = plan.base.image
    assert base is not None, "the plan of a full build has its base"
    image = replace(base, annotations={})
    if plan.engine.venv:
        image = append(
            image, [_skeleton(plan, store, known), *_dependencies(plan, store, cache, known, say)]
        )
        image = _runtime(image, plan)
    elif plan.engine.entrypoint:
        image = with_config(image, Entrypoint=list(plan.engine.entrypoint), Cmd=[])
    image = replace(image, created="")
    return replace(
        image,
        annotations={
            DEPENDENCY_KEY: plan.key.value,
            INPUTS: canonical_json(plan.key.inputs).decode(),
            CONFIG_COPY: image.config_bytes.decode(),
        },
    )


def _dependencies(
    plan: Plan, store: LayoutStore, cache: Path, known: Known, say: Say
) -> list[Layer]:
    groups = wheel_groups(plan)
    if plan.variant.builder != "assemble":
        from slipway.build import dockerfile

        return dockerfile.layers(plan, [(g.label, g.names) for g in groups], store, cache, say)
    found = {group.label: known(group.key) for group in groups}
    missing = [group for group in groups if found[group.label] is None]
    pins = {name: plan.lock.pins[name] for group in missing for name in group.names}
    if missing:
        from slipway.build import closure

        say(f"fetching {len(pins)} locked wheels (those that are not in {cache})")
        files = wheels.fetch(replace(plan.lock, pins=pins), plan.variant, cache)
        closure.check(plan.lock, files, plan.project, plan.engine, plan.variant)
        _check_free_space(store, files)
        say("unpacking them into layers")
        with ThreadPoolExecutor(max_workers=2) as pool:
            made = pool.map(lambda group: _wheel_layer(plan, store, files, group), missing)
            found.update(zip((group.label for group in missing), made, strict=True))
    return [
        replace(layer, created_by=f"wheels: {label}") for label, layer in found.items() if layer
    ]


def _runtime(image: Image, plan: Plan) -> Image:
    """The config of an engine in a virtual environment of its own."""
    venv = plan.engine.venv
    inherited = _env(image.config)
    environment = {
        **inherited,
        "PATH": f"{venv}/bin:{inherited.get('PATH', '/usr/local/bin:/usr/bin:/bin')}",
        "VIRTUAL_ENV": venv,
        "HOME": "/tmp",
        "USER": plan.engine.name,  # the uid has no name in the base, and some libraries ask for one
        "PYTHONUNBUFFERED": "1",
        **plan.variant.env,
    }
    return with_config(
        image,
        Entrypoint=list(plan.engine.entrypoint),
        Cmd=["--help"],
        Env=[f"{name}={value}" for name, value in environment.items()],
        User=USER,
        WorkingDir="/tmp",
    )


def _env(config: Mapping[str, object]) -> dict[str, str]:
    runtime = config.get("config")
    entries = runtime.get("Env") or [] if isinstance(runtime, dict) else []
    return dict(entry.split("=", 1) for entry in entries)


def _check_free_space(store: LayoutStore, files: Mapping[str, Path]) -> None:
    import shutil

    needed = sum(path.stat().st_size for path in files.values())
    free = shutil.disk_usage(_existing(store.root)).free
    if free < needed * 1.1:
        raise StorageError(
            f"the disk under {store.root} has {free >> 20} MiB free, and the dependency layers "
            f"need about {needed >> 20} MiB",
            "free some space, or put the store elsewhere with --store",
        )


def _existing(path: Path) -> Path:
    return path if path.exists() else _existing(path.parent)


@dataclass(frozen=True)
class WheelGroup:
    """Packages that share a layer, by name."""

    label: str
    names: tuple[str, ...]
    key: str


def wheel_groups(plan: Plan) -> list[WheelGroup]:
    """What becomes one dependency layer each: the packages that the matrix names, and the rest.

    Raises:
        LockError: the matrix names a package that is not locked.
    """
    pins = plan.lock.pins
    own: list[str] = []
    for pattern in plan.variant.own_layer:
        if not (found := fnmatch.filter(pins, pattern)):
            raise LockError(
                f"own-layer names {pattern!r}, which {plan.variant.lock} does not lock",
                "correct docker/matrix.toml",
            )
        own += [name for name in found if name not in own]
    own.sort()
    rest = tuple(sorted(name for name in pins if name not in own))
    named = [("dependencies", rest), *((name, (name,)) for name in own)]
    return [
        WheelGroup(
            label,
            names,
            layer_key(
                "wheels",
                [
                    plan.engine.venv,
                    plan.variant.python,
                    [wheels.identity(pins[name], plan.variant) for name in names],
                ],
                plan.matrix.compression,
            ),
        )
        for label, names in named
        if names
    ]


def _wheel_layer(
    plan: Plan, store: LayoutStore, files: Mapping[str, Path], group: WheelGroup
) -> Layer:
    from slipway.build.unpack import unpack

    installed: list[Package] = []

    def fill(writer: LayerWriter) -> None:
        paths = (files[name] for name in group.names)
        installed.extend(unpack(paths, plan.engine, plan.variant, writer))

    root = plan.engine.venv.lstrip("/")
    created_by = f"wheels: {group.label}"
    layer = write_layer(
        store,
        fill,
        roots=[root],
        key=group.key,
        created_by=created_by,
        compression=plan.matrix.compression,
    )
    return note_packages(layer, installed)


def skeleton(plan: Plan) -> list[File | Symlink]:
    """The virtual environment around the dependencies: links, launchers, the path to the source."""
    from slipway.build.unpack import launchers

    engine, python = plan.engine, plan.variant.python
    venv = engine.venv.lstrip("/")
    home = plan.base.python.rpartition("/")[0]
    shared = "true" if plan.variant.provided else "false"
    return [
        File(
            f"{venv}/pyvenv.cfg",
            f"home = {home}\ninclude-system-site-packages = {shared}\n"
            f"version = {python}\n".encode(),
        ),
        Symlink(f"{venv}/bin/python", plan.base.python),
        Symlink(f"{venv}/bin/python3", "python"),
        Symlink(f"{venv}/bin/python{python}", "python"),
        *launchers(plan.project, engine),
        File(
            f"{venv}/lib/python{python}/site-packages/{engine.name}-source.pth",
            f"{engine.root}\n".encode(),
        ),
    ]


def _skeleton(plan: Plan, store: LayoutStore, known: Known) -> Layer:
    engine = plan.engine
    venv = engine.venv.lstrip("/")
    entries = skeleton(plan)
    content = [[e.path, e.target if isinstance(e, Symlink) else e.data.decode()] for e in entries]
    key = layer_key("skeleton", content, plan.matrix.compression)
    created_by = "virtual environment"
    if found := known(key):
        return replace(found, created_by=created_by)

    def fill(writer: LayerWriter) -> None:
        for entry in entries:
            writer.add(entry)

    parent = engine.root.lstrip("/").rpartition("/")[0]
    layer = write_layer(
        store,
        fill,
        roots=[parent, venv],
        key=key,
        created_by=created_by,
        compression=plan.matrix.compression,
    )
    return note_packages(layer, [])
