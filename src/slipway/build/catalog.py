"""Images that are there already, here or in a registry: list, compare, promote, verify."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from slipway.build import attest, tags
from slipway.build.git import Checkout
from slipway.build.plan import COMMIT, DEPENDENCY_KEY
from slipway.build.remote import Remote
from slipway.errors import IntegrityError, RepositoryError, TagTakenError, UsageError
from slipway.image import contents
from slipway.image.layer import LAYER_KEY
from slipway.image.layout import LayoutStore
from slipway.image.model import Image, Layer


class Shelf(Protocol):
    """Where images are: a local store or a repository in a registry."""

    @property
    def where(self) -> str:
        """For people."""
        ...

    def names(self) -> Mapping[str, str]:
        """Digest by tag."""
        ...

    def image(self, name: str) -> Image | None:
        """The image under a tag or digest."""
        ...

    def name_again(self, name: str, to: str, *, move: bool) -> str:
        """Give what `name` names the further name `to`; gives the digest.

        Raises:
            TagTakenError: `to` names another image, and may not move.
        """
        ...


@dataclass(frozen=True)
class Local:
    """A layout store as a shelf."""

    store: LayoutStore

    @property
    def where(self) -> str:
        """The folder."""
        return str(self.store.root)

    def names(self) -> Mapping[str, str]:
        """Digest by tag."""
        return {name: descriptor.digest for name, descriptor in self.store.tags().items()}

    def image(self, name: str) -> Image | None:
        """The image under a tag or digest."""
        return self.store.read_image(name)

    def name_again(self, name: str, to: str, *, move: bool) -> str:
        """Give what `name` names the further name `to`."""
        image = must(self, name)
        self.store.tag(to, image.descriptor, move=move)
        return image.digest

    def sboms(self, image: Image) -> list[dict[str, Any]]:
        """What the descriptors of the layers note."""
        return [attest.sbom(image)]


@dataclass(frozen=True)
class Shared:
    """A repository in a registry as a shelf."""

    remote: Remote

    @property
    def where(self) -> str:
        """`registry/repository`."""
        return str(self.remote.repository)

    def names(self) -> Mapping[str, str]:
        """Digest by tag, asked for side by side."""
        found = self.remote.repository.tags()
        with ThreadPoolExecutor(max_workers=4) as pool:
            resolved = pool.map(self.remote.repository.resolve, found)
        return {n: d.digest for n, d in zip(found, resolved, strict=True) if d is not None}

    def image(self, name: str) -> Image | None:
        """The image under a tag or digest."""
        return self.remote.image(name)

    def name_again(self, name: str, to: str, *, move: bool) -> str:
        """Give what `name` names the further name `to`: the manifest's very bytes, put again."""
        repository = self.remote.repository
        found = repository.manifest(name)
        if found is None:
            raise _missing(self, name)
        descriptor, data = found
        taken = repository.resolve(to)
        if taken is not None and taken.digest != descriptor.digest and not move:
            raise TagTakenError(
                f"{repository}:{to} already names {taken.digest}, not {descriptor.digest}",
                "release tags are immutable; choose another, or --move it on purpose",
            )
        if taken is None or taken.digest != descriptor.digest:
            repository.put_manifest(data, descriptor.media_type, to)
        return descriptor.digest

    def sboms(self, image: Image) -> list[dict[str, Any]]:
        """What the descriptors of the layers note, and what is attached."""
        theirs = attest.attached(self.remote.repository, image.digest, attest.SBOM)
        return [attest.sbom(image), *theirs]


def must(shelf: Shelf, name: str) -> Image:
    """The image under a name.

    Raises:
        UsageError: there is none; the remedy lists names that are there.
    """
    image = shelf.image(name)
    if image is None:
        raise _missing(shelf, name)
    return image


def _missing(shelf: Shelf, name: str) -> UsageError:
    there = [n for n in shelf.names() if not n.startswith(("deps-", "base-", "sha256-"))]
    return UsageError(
        f"there is no image {name} in {shelf.where}",
        f"there are: {', '.join(there[:8]) or 'none'}",
    )


@dataclass(frozen=True)
class Row:
    """One image in a listing, with all its names."""

    digest: str
    names: tuple[str, ...]
    bytes: int
    layers: int
    commit: str
    version: str
    created: str


def listing(shelf: Shelf, *, everything: bool = False) -> list[Row]:
    """Images with their names, newest first; deps images and bases only on request."""
    by_digest: dict[str, list[str]] = {}
    for name, digest in shelf.names().items():
        if everything or not name.startswith(("deps-", "base-", "sha256-")):
            by_digest.setdefault(digest, []).append(name)
    rows = []
    for digest, names in by_digest.items():
        if (image := shelf.image(digest)) is not None:
            labels = image.labels
            rows.append(
                Row(
                    digest,
                    tuple(sorted(names, key=lambda name: (tags.is_alias(name), name))),
                    image.size,
                    len(image.layers),
                    labels.get(COMMIT, "")[:9],
                    labels.get("org.opencontainers.image.version", ""),
                    image.created,
                )
            )

    def age(row: Row) -> tuple[str, str]:
        built = [
            tag.moment.isoformat() for name in row.names if (tag := tags.parse_image_tag(name))
        ]
        return (row.created, max(built, default=""))

    return sorted(rows, key=age, reverse=True)


def inspect(image: Image) -> dict[str, Any]:
    """An image in full, as data."""
    return {
        "digest": image.digest,
        "bytes": image.size,
        "platform": str(image.platform),
        "created": image.created,
        "labels": dict(image.labels),
        "config": {k: v for k, v in image.config.get("config", {}).items() if k != "Labels"},
        "layers": [
            {
                "digest": layer.descriptor.digest,
                "diff_id": layer.diff_id,
                "bytes": layer.descriptor.size,
                "created_by": layer.created_by,
                "key": layer.descriptor.annotations.get(LAYER_KEY, ""),
            }
            for layer in image.layers
        ],
    }


def promote(shelf: Shelf, name: str, to: str, *, move: bool = False) -> str:
    """Give what `name` names the further name `to`, by digest: nothing is built or copied.

    Raises:
        TagTakenError: `to` names another image. Aliases (`<branch>-latest…`) and `move` may.
        UsageError: `to` is a name that only builds give.
    """
    if tags.parse_image_tag(to) or to.startswith(("deps-", "base-")):
        raise UsageError(
            f"{to} looks like a name that a build gives", "choose a release's name, such as v1.2.0"
        )
    return shelf.name_again(name, to, move=move or tags.is_alias(to))


@dataclass(frozen=True)
class Difference:
    """What differs between two images; lists are of `+ x`, `- x`, `~ x`."""

    labels: list[str]
    config: list[str]
    packages: list[str]
    files: list[str]
    layers: list[str]
    bytes_moved: int

    def to_json(self) -> dict[str, Any]:
        """As data."""
        return dict(vars(self))


def diff(before: Image, after: Image) -> Difference:
    """Compare two images.

    Layers that both have are not read: a file of theirs that only one image overrides counts as
    added there.
    """
    common = {layer.diff_id for layer in before.layers} & {x.diff_id for x in after.layers}

    def own(image: Image) -> list[Layer]:
        return [layer for layer in image.layers if layer.diff_id not in common]

    old, new = contents.read(own(before)), contents.read(own(after))
    had = {package.name: package.version for package in contents.packages(old)}
    has = {package.name: package.version for package in contents.packages(new)}
    return Difference(
        labels=list(_lines(before.labels, after.labels)),
        config=list(_lines(_runtime(before), _runtime(after))),
        packages=list(_lines(had, has)),
        files=[f"{sign} {path}" for sign, path in contents.changes(old.files, new.files)],
        layers=[
            *(f"- {layer.created_by} {layer.descriptor.size}" for layer in own(before)),
            *(f"+ {layer.created_by} {layer.descriptor.size}" for layer in own(after)),
        ],
        bytes_moved=sum(layer.descriptor.size for layer in own(after)),
    )


def _runtime(image: Image) -> dict[str, str]:
    runtime = image.config.get("config", {})
    environment = dict(entry.split("=", 1) for entry in runtime.get("Env") or [])
    rest = {k: str(v) for k, v in runtime.items() if k not in ("Env", "Labels")}
    return {**rest, **{f"Env {name}": value for name, value in environment.items()}}


def _lines(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    for sign, key in contents.changes(before, after):
        if sign == "~":
            yield f"~ {key} {before[key]} -> {after[key]}"
        else:
            yield f"{sign} {key} {(after if sign == '+' else before)[key]}"


def verify(
    image: Image, checkout: Checkout | None, sboms: Iterable[Mapping[str, Any]] = ()
) -> list[str]:
    """What is wrong with an image; empty where nothing is. Every layer is read.

    Its labels are held against git (the commit exists and has the very source), its SBOMs against
    what the layers install.
    """
    wrong = []
    try:
        tree = contents.read(image.layers)
    except IntegrityError as error:
        return [error.what]
    labels = image.labels
    for name in (COMMIT, DEPENDENCY_KEY, "org.opencontainers.image.version"):
        if not labels.get(name):
            wrong.append(f"the label {name} is missing")
    installed = {package.name: package for package in contents.packages(tree)}
    version = labels.get("org.opencontainers.image.version", "")
    if version and version not in {package.version for package in installed.values()}:
        wrong.append(f"the label says version {version}, and no package of the image has it")
    noted = [layer for layer in image.layers if contents.noted_packages(layer) is not None]
    # A foreign base has no notes, and its packages stand in no SBOM.
    itemised = tree if len(noted) == len(image.layers) else contents.read(noted)
    for bom in sboms:
        wrong += attest.against_layers(bom, itemised)
    if checkout is not None and labels.get(COMMIT):
        wrong += _against_git(image, tree, checkout, dirty="dirty" in version)
    return wrong


def _against_git(
    image: Image, tree: contents.Tree, checkout: Checkout, *, dirty: bool
) -> list[str]:
    from hashlib import sha256

    from slipway.build import matrix as matrices

    commit = image.labels[COMMIT]
    try:
        checkout.run("cat-file", "-e", f"{commit}^{{commit}}")
    except RepositoryError:
        return [f"commit {commit[:9]} is not in {checkout.root}"]
    if dirty:
        return []
    engine = matrices.load(checkout.root).engine
    entries = [
        entry
        for entry in checkout.ls_tree(f"{commit}:{engine.source}", recursive=True)
        if entry.mode in ("100644", "100755")
    ]
    package = f"{engine.root.lstrip('/')}/{engine.package}"
    expected = {
        f"{package}/{entry.path}": sha256(data).hexdigest()
        for entry, data in zip(entries, checkout.blobs([e.object_id for e in entries]), strict=True)
    }
    found = {
        path: entry.content
        for path, entry in tree.files.items()
        if path.startswith(f"{package}/") and entry.kind == "f"
    }
    names = {"+": "is not in", "-": "is missing, but in", "~": "differs from"}
    return [
        f"{path} {names[sign]} commit {commit[:9]}"
        for sign, path in contents.changes(expected, found)
    ]
