"""Source layers: the engine's source tree, one layer per top-level package, keyed by git's tree
ids.

The tree is always read through git (`Checkout.snapshot`), whether it is committed or not: clean and
edited trees take the same path, ignored files never travel, and the key of an unchanged package
costs no hashing.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from slipway.build.git import Checkout, TreeEntry
from slipway.build.matrix import Engine
from slipway.errors import RepositoryError
from slipway.image.contents import Package, note_packages
from slipway.image.layer import (
    DEFAULT_COMPRESSION,
    File,
    LayerWriter,
    Symlink,
    layer_key,
    safe_path,
    write_layer,
)
from slipway.image.layout import LayoutStore
from slipway.image.model import Layer

# Overlay file systems take about 125 layers; base and dependencies need some of them.
MAX_SOURCE_LAYERS = 60

FindLayer = Callable[[str], Layer | None]


# How far back it is looked which packages change: those that changed last lie on top.
RECENT_COMMITS = 30


@dataclass(frozen=True)
class Part:
    """What becomes one source layer.

    Attributes:
        name: what it holds, for its label.
        entries: of the source tree.
        metadata: files beside the source.
        opaque: whether it hides what lower layers have at the source's place.
    """

    name: str
    key: str
    entries: tuple[TreeEntry, ...] = ()
    metadata: tuple[File, ...] = ()
    opaque: bool = False


def parts(
    checkout: Checkout, tree: str, engine: Engine, dist_info: Sequence[File], compression: str
) -> list[Part]:
    """Divide a source tree into layers, bottom first.

    At the bottom a whiteout, which never changes; then a part per package and one for the
    top-level files, those on top that changed last; above them the version's metadata, which
    change with every commit. A Docker Engine unpacks anew every layer above the lowest that
    changed, so this order is what makes a pull after an edit quick. It follows from the commit and
    those before it, so that it is the same on every machine.

    Above `MAX_SOURCE_LAYERS` packages neighbours share a layer.
    """
    top = checkout.ls_tree(tree)
    files = tuple(entry for entry in top if entry.mode != "040000")
    packages = [entry for entry in top if entry.mode == "040000"]
    if not files and not packages:
        raise RepositoryError(f"the source tree {engine.source} is empty")
    share = -(-len(packages) // (MAX_SOURCE_LAYERS - 3)) or 1
    groups = [tuple(packages[i : i + share]) for i in range(0, len(packages), share)]
    age = _ages(checkout, engine, top)
    if files:
        groups.append(files)
    groups.sort(key=lambda group: -min(age[entry.path] for entry in group))

    def key(kind: str, content: object) -> str:
        return layer_key("source", [engine.root, engine.package, kind, content], compression)

    found = [Part("", key("place", engine.owned), opaque=True)]
    for group in groups:
        listed = [[entry.path, entry.mode, entry.object_id] for entry in group]
        name = "" if group is files else " ".join(entry.path for entry in group)
        found.append(Part(name, key("tree", listed), group))
    if dist_info:
        content = [[file.path, file.data.decode()] for file in dist_info]
        found.append(Part("", key("metadata", content), metadata=tuple(dist_info)))
    return found


def _ages(checkout: Checkout, engine: Engine, top: Sequence[TreeEntry]) -> dict[str, int]:
    """How many commits ago each top-level entry last changed, `RECENT_COMMITS` where that is long.

    -1 is a change that is not committed.
    """
    source = engine.source.rstrip("/")
    age = {entry.path: RECENT_COMMITS for entry in top}
    words = ["log", f"-{RECENT_COMMITS}", "--first-parent", "-m", "--no-renames", "--name-only"]
    log = checkout.run(*words, "--format=%x01", "HEAD", "--", source)
    for number, commit in enumerate(log.decode(errors="replace").split("\x01")[1:]):
        for name in commit.splitlines():
            path = name.removeprefix(f"{source}/").partition("/")[0]
            if path in age:
                age[path] = min(age[path], number)
    if checkout.head.dirty:
        before = {entry.path: entry.object_id for entry in checkout.ls_tree(f"HEAD:{source}")}
        age |= {entry.path: -1 for entry in top if before.get(entry.path) != entry.object_id}
    return age


def dist_info(
    engine: Engine, distribution: str, version: str, scripts: Mapping[str, str]
) -> list[File]:
    """The metadata through which `importlib.metadata` finds the version (PEP 376, PEP 566)."""
    root = engine.root.lstrip("/")
    folder = f"{root}/{distribution.replace('-', '_')}-{version}.dist-info"
    entry_points = "".join(f"{name} = {to}\n" for name, to in sorted(scripts.items()))
    return [
        File(
            f"{folder}/METADATA",
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n".encode(),
        ),
        File(f"{folder}/entry_points.txt", f"[console_scripts]\n{entry_points}".encode()),
    ]


def layers(
    checkout: Checkout,
    tree: str,
    engine: Engine,
    metadata: Sequence[File],
    store: LayoutStore,
    find: FindLayer,
    compression: str = DEFAULT_COMPRESSION,
) -> list[Layer]:
    """The source layers of `tree`, bottom first; those that `find` has by key are taken."""
    made = []
    for part in parts(checkout, tree, engine, metadata, compression):
        found = find(part.key)
        if found is not None:
            made.append(replace(found, created_by=_label(part, engine)))
        else:
            made.append(_make(checkout, part, engine, store, compression))
    return made


def _label(part: Part, engine: Engine) -> str:
    if part.opaque:
        return f"place of {engine.package}"
    if part.metadata:
        return f"version of {engine.package}"
    return f"source {engine.package}{f'/{part.name}' if part.name else ''}"


def _make(
    checkout: Checkout,
    part: Part,
    engine: Engine,
    store: LayoutStore,
    compression: str,
) -> Layer:
    root = engine.root.lstrip("/")
    package = f"{root}/{engine.package}"

    def fill(writer: LayerWriter) -> None:
        if part.opaque:
            writer.opaque(engine.owned)
            writer.directory(package)
        for file in part.metadata:
            writer.add(file)
        for item in files(checkout, part.entries, engine):
            writer.add(item)

    layer = write_layer(
        store,
        fill,
        roots=[engine.owned],
        key=part.key,
        created_by=_label(part, engine),
        compression=compression,
    )
    described = [file for file in part.metadata if file.path.endswith("/METADATA")]
    return note_packages(layer, [Package.from_metadata(f.data.decode()) for f in described])


def files(
    checkout: Checkout, packages: Sequence[TreeEntry], engine: Engine
) -> Iterator[File | Symlink]:
    """Entries of the source tree, with all that is below them, as they lie in the image.

    Raises:
        RepositoryError: one is a repository of its own, or a link that leaves the tree.
    """
    root = engine.root.lstrip("/")
    entries = []
    for entry in packages:
        if entry.mode == "040000":
            below = checkout.ls_tree(entry.object_id, recursive=True)
            entries += [
                TreeEntry(f"{entry.path}/{b.path}", b.mode, b.object_id, b.size) for b in below
            ]
        else:
            entries.append(entry)
    for entry in entries:
        if entry.mode == "160000":
            raise RepositoryError(
                f"{engine.source}/{entry.path} is a submodule or a repository of its own, and "
                "its files would not travel",
                "add its files to this repository, or ignore it",
            )
    contents = checkout.blobs([entry.object_id for entry in entries])
    for entry, data in zip(entries, contents, strict=True):
        path = f"{root}/{engine.package}/{safe_path(entry.path, engine.source)}"
        if entry.mode == "120000":
            yield _link(path, data.decode(), root)
        else:
            yield File(path, data, executable=entry.mode == "100755")


def _link(path: str, target: str, root: str) -> Symlink:
    end = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    if target.startswith("/") or not end.startswith(f"{root}/"):
        raise RepositoryError(
            f"the link {path} leaves the source tree: it points at {target!r}",
            "make it relative and let it stay inside, or remove it",
        )
    return Symlink(path, target)
