"""The `assemble` builder: an image without a daemon, root or a container; nothing is executed.

Full: base, a skeleton of the virtual environment, dependencies from wheels; that is the deps image.
Then, on both paths: source layers and labels on top of it. A layer whose key an earlier image has
is taken from there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from slipway.build import closure, source, wheels
from slipway.build.git import Checkout
from slipway.build.plan import DEPENDENCY_KEY, INPUTS, Plan
from slipway.errors import LockError, StorageError
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


def known_layers(store: LayoutStore, plan: Plan) -> Known:
    """Layers that the alias's image and the variant's deps images have."""
    names = store.tags()
    wanted = [name for name in names if name.startswith(f"deps-{plan.variant.name}-")]
    if plan.alias in names:
        wanted.append(plan.alias)
    found = {}
    for name in wanted:
        image = store.read_image(name)
        for layer in image.layers if image else ():
            if (key := layer.descriptor.annotations.get(LAYER_KEY)) and store.has(
                layer.descriptor.digest
            ):
                found[key] = layer
    return Known(found)


def assemble(checkout: Checkout, plan: Plan, store: LayoutStore, cache: Path, say: Say) -> Image:
    """Build the image of a plan into `store` (blobs and manifest; no tag).

    Raises:
        SlipwayError: a lock, a wheel, the network or the disk stood in the way; the store stays as
            it was, but for blobs that nothing names.
    """
    known = known_layers(store, plan)
    deps = store.read_image(plan.deps_tag) if plan.path == "fast" else None
    if deps is None:
        deps = deps_image(plan, store, cache, Known({}) if plan.forced else known, say)
        store.write_image(deps, [plan.deps_tag], move=True)
    table = plan.project.get("project", {})
    scripts = {
        name: target
        for name, target in table.get("scripts", {}).items()
        if target.startswith(f"{plan.engine.package}.")
    }
    metadata = source.dist_info(
        plan.engine, table.get("name", plan.engine.name), plan.version.text, scripts
    )
    with checkout.snapshot(plan.engine.source) as (snapshot, tree):
        layers = source.layers(snapshot, tree, plan.engine, metadata, store, known)
    created = datetime.fromtimestamp(plan.commit_time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    image = replace(append(deps, layers), created=created, annotations={})
    image = with_config(image, Env=[*image.config["config"]["Env"], _bytecode_folder(image)])
    image = with_labels(image, labels(plan, created))
    store.write_image(image)
    return image


def _bytecode_folder(image: Image) -> str:
    """Where a container keeps the .pyc that it makes, since none travels in a layer.

    The folder is named after the image's content. A .pyc is believed by its source's time and size,
    and the time is one constant here: in a folder that images share, a same-size edit would run the
    old code.
    """
    content = sha256(" ".join(layer.diff_id for layer in image.layers).encode())
    return f"PYTHONPYCACHEPREFIX=/tmp/pycache-{content[7:19]}"


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
        "org.slipway.commit": plan.commit,
    }


def deps_image(plan: Plan, store: LayoutStore, cache: Path, known: Known, say: Say) -> Image:
    """Base and dependencies, with everything in the config but the labels."""
    say(f"fetching {len(plan.lock.pins)} locked wheels (those that are not in {cache})")
    files = wheels.fetch(plan.lock, plan.variant, cache)
    closure.check(plan.lock, files, plan.project, plan.engine, plan.variant)
    _check_free_space(store, files)
    own = [name for name in sorted(plan.variant.own_layer) if name in files]
    if unknown := [name for name in plan.variant.own_layer if name not in files]:
        raise LockError(
            f"own-layer names {unknown[0]!r}, which {plan.variant.lock} does not lock",
            "correct docker/matrix.toml",
        )
    rest = sorted(name for name in files if name not in own)
    groups = [("dependencies", rest), *((name, [name]) for name in own)]
    say("unpacking them into layers")
    with ThreadPoolExecutor(max_workers=2) as pool:
        layers = list(
            pool.map(lambda group: _wheel_layer(plan, store, files, known, *group), groups)
        )
    skeleton = _skeleton(plan, store, known)
    venv, base = plan.engine.venv, plan.base.image
    path = _env(base.config).get("PATH", "/usr/local/bin:/usr/bin:/bin")
    environment = {
        **_env(base.config),
        "PATH": f"{venv}/bin:{path}",
        "VIRTUAL_ENV": venv,
        "HOME": "/tmp",
        "USER": plan.engine.name,  # the uid has no name in the base, and some libraries ask for one
        "PYTHONUNBUFFERED": "1",
    }
    image = append(replace(base, annotations={}), [skeleton, *layers])
    image = with_config(
        image,
        Entrypoint=list(plan.engine.entrypoint),
        Cmd=["--help"],
        Env=[f"{name}={value}" for name, value in environment.items()],
        User=USER,
        WorkingDir="/tmp",
    )
    return replace(
        image,
        created="",
        annotations={
            DEPENDENCY_KEY: plan.key.value,
            INPUTS: canonical_json(plan.key.inputs).decode(),
        },
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


def _wheel_layer(
    plan: Plan,
    store: LayoutStore,
    files: Mapping[str, Path],
    known: Known,
    label: str,
    names: list[str],
) -> Layer:
    pins = [f"{name}=={plan.lock.pins[name].version} {files[name].parent.name}" for name in names]
    key = layer_key("wheels", [plan.engine.venv, plan.variant.python, pins])
    if found := known(key):
        return found

    def fill(writer: LayerWriter) -> None:
        from slipway.build.unpack import unpack

        unpack((files[name] for name in names), plan.engine, plan.variant, writer)

    root = plan.engine.venv.lstrip("/")
    return write_layer(store, fill, roots=[root], key=key, created_by=f"wheels: {label}")


def _skeleton(plan: Plan, store: LayoutStore, known: Known) -> Layer:
    """The virtual environment around the wheels: links, launchers, the path to the source."""
    from slipway.build.unpack import launchers

    engine, python = plan.engine, plan.variant.python
    venv = engine.venv.lstrip("/")
    home = plan.base.python.rpartition("/")[0]
    entries: list[File | Symlink] = [
        File(
            f"{venv}/pyvenv.cfg",
            f"home = {home}\ninclude-system-site-packages = false\nversion = {python}\n".encode(),
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
    content = [[e.path, e.target if isinstance(e, Symlink) else e.data.decode()] for e in entries]
    key = layer_key("skeleton", content)
    if found := known(key):
        return found

    def fill(writer: LayerWriter) -> None:
        for entry in entries:
            writer.add(entry)

    parent = engine.root.lstrip("/").rpartition("/")[0]
    return write_layer(store, fill, roots=[parent, venv], key=key, created_by="virtual environment")
