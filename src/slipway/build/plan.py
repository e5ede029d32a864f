"""The plan of one build: full or fast, and why, as a value and as a sentence."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from slipway.build import base as bases
from slipway.build import key as keys
from slipway.build import lock as locks
from slipway.build import tags, version
from slipway.build.base import Base
from slipway.build.git import Checkout
from slipway.build.key import DependencyKey
from slipway.build.lock import Lock
from slipway.build.matrix import Engine, Matrix, Variant
from slipway.build.remote import Remote
from slipway.build.version import Version
from slipway.errors import BaseError, ConfigError
from slipway.image.layout import LayoutStore

INPUTS = "org.slipway.dependency-inputs"
DEPENDENCY_KEY = "org.slipway.dependency-key"
COMMIT = "org.slipway.commit"


@dataclass(frozen=True)
class Plan:
    """What one build will do.

    Attributes:
        path: `full` makes the deps image, `fast` starts from it.
        forced: a full build that was asked for: dependency layers are made anew.
        why: one clause.
        deps_tag: the deps image's name in the store.
        tag: the immutable tag, without the number that a collision would add.
        alias: the name that moves.
        moment: when the build was asked for.
        root: of the checkout.
    """

    matrix: Matrix
    variant: Variant
    path: Literal["full", "fast"]
    forced: bool
    why: str
    key: DependencyKey
    deps_tag: str
    base: Base
    lock: Lock
    project: Mapping[str, Any]
    commit: str
    commit_time: int
    branch: str
    dirty: bool
    version: Version
    ci: bool
    moment: datetime
    tag: str
    alias: str
    root: Path = Path()

    @property
    def engine(self) -> Engine:
        """The engine that is released."""
        return self.matrix.engine

    def numbered_tag(self, number: int) -> str:
        """The tag of the `number`th image of one commit in one minute."""
        return tags.image_tag(
            self.branch,
            self.commit,
            ci=self.ci,
            moment=self.moment,
            dirty=self.dirty,
            variant=self.variant.name,
            default_variant=self.matrix.default_variant,
            number=number,
        )

    @property
    def other_aliases(self) -> list[str]:
        """Names whose images a branch's first build may take layers from: CI's and the trunk's."""
        default = self.matrix.default_variant
        names = [
            tags.alias(branch, ci=ci, variant=self.variant.name, default_variant=default)
            for branch in (self.branch, self.matrix.trunk)
            for ci in (True, False)
        ]
        return [name for name in dict.fromkeys(names) if name != self.alias]

    @property
    def sentence(self) -> str:
        """The plan for a person: `full: no deps image for key 3f2a… yet`."""
        return f"{self.path}: {self.why}"

    def to_json(self) -> dict[str, Any]:
        """The plan for a machine."""
        return {
            "variant": self.variant.name,
            "plan": self.path,
            "why": self.why,
            "dependency_key": self.key.value,
            "deps_tag": self.deps_tag,
            "base": {"origin": self.base.origin, "digest": self.base.digest, "why": self.base.why},
            "version": self.version.text,
            "version_guess": self.version.guess,
            "commit": self.commit,
            "branch": self.branch,
            "dirty": self.dirty,
            "tag": self.tag,
            "alias": self.alias,
        }


def decide(
    checkout: Checkout,
    matrix: Matrix,
    variant: Variant,
    base: Base,
    lock: Lock,
    project: Mapping[str, Any],
    store: LayoutStore,
    remote: Remote | None = None,
    *,
    full: bool = False,
    ci: bool = False,
    moment: datetime | None = None,
) -> Plan:
    """Decide how the variant is built from the working tree.

    Args:
        lock: of the variant, and found to satisfy `project`.
        project: `pyproject.toml` as a table.
        remote: a repository whose deps image does as well as a local one.

    Raises:
        RepositoryError: no commit to name the image after.
    """
    commit = checkout.commit()
    dirty = checkout.is_dirty()
    key = keys.compute(
        project,
        matrix.engine,
        variant,
        lock,
        base.digest,
        matrix.compression,
        _dockerfile(checkout.root, variant),
    )
    deps_tag = tags.deps_tag(variant.name, key.value)
    moment = moment or datetime.now(UTC)
    branch = checkout.branch()
    default = matrix.default_variant
    alias = tags.alias(branch, ci=ci, variant=variant.name, default_variant=default)
    tag = tags.image_tag(
        branch,
        commit,
        ci=ci,
        moment=moment,
        dirty=dirty,
        variant=variant.name,
        default_variant=default,
    )
    if remote is not None and remote.publishing:
        remote.prefetch([alias, deps_tag, tag])
    elif remote is not None and deps_tag not in store.tags():
        remote.prefetch([alias, deps_tag])
    path, why = _choose(store, remote, variant, key, deps_tag, alias, full)
    return Plan(
        matrix=matrix,
        variant=variant,
        path=path,
        forced=full,
        why=why,
        key=key,
        deps_tag=deps_tag,
        base=base,
        lock=lock,
        project=project,
        commit=commit,
        commit_time=checkout.commit_time(),
        branch=branch,
        dirty=dirty,
        version=version.describe(checkout, dirty=dirty),
        ci=ci,
        moment=moment,
        tag=tag,
        alias=alias,
        root=checkout.root,
    )


def _dockerfile(root: Path, variant: Variant) -> bytes | None:
    if variant.builder == "assemble":
        return None
    path = root / variant.dockerfile
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise ConfigError(
            f"there is no {path}, from which the builder {variant.builder} builds",
            "write one, or give the variant the builder assemble",
        ) from error


def _choose(
    store: LayoutStore,
    remote: Remote | None,
    variant: Variant,
    key: DependencyKey,
    deps_tag: str,
    alias: str,
    full: bool,
) -> tuple[Literal["full", "fast"], str]:
    short = f"{key.value[:12]}…"
    if full:
        return "full", "FULL=1 was asked for"
    if not key.inputs["base"]:
        return "full", f"{variant.base.reference} is out of reach from here"
    names = store.tags()
    moves = "only source layers move"
    if deps_tag in names:
        return "fast", f"deps image {deps_tag} is in {store.root}, {moves}"
    if remote is not None and remote.manifest(deps_tag) is not None:
        return "fast", f"deps image {deps_tag} is in {remote.repository}, {moves}"
    since = _since(store, remote, variant, key, alias)
    return "full", f"no deps image for key {short} yet{since}"


def _since(
    store: LayoutStore, remote: Remote | None, variant: Variant, key: DependencyKey, alias: str
) -> str:
    """What changed since the last deps image, as the end of a sentence."""
    earlier = [name for name in store.tags() if name.startswith(f"deps-{variant.name}-")]
    notes: Mapping[str, str] = {}
    name = ""
    if earlier:
        name = earlier[-1]
        image = store.read_image(name)
        notes = image.annotations if image else {}
    elif remote is not None and (latest := remote.manifest(alias)):
        name = tags.deps_tag(variant.name, latest.annotations.get(DEPENDENCY_KEY, ""))
        manifest = remote.manifest(name)
        notes = manifest.annotations if manifest else {}
    before = json.loads(notes.get(INPUTS, "{}"))
    changed = keys.explain(before, key.inputs) if before else []
    return f", changed since {name}: {'; '.join(changed)}" if changed else ""


def load_and_decide(
    checkout: Checkout,
    variant_name: str,
    store: LayoutStore,
    cache: Path,
    remote: Remote | None = None,
    *,
    full: bool = False,
    ci: bool = False,
    builder: str = "",
    unbuilt: bool = False,
) -> Plan:
    """Read the repository and decide; a base that is missing is made or fetched.

    Args:
        unbuilt: plan even where the base cannot be had from here.
    """
    from slipway.build import matrix as matrices

    checkout.commit()
    matrix = matrices.load(checkout.root)
    variant = matrix.variant(variant_name or matrix.default_variant)
    if builder:
        variant = replace(variant, builder=builder)
    # What can be refused without the base is refused before the base is made.
    project = locks.read_project(checkout.root / matrix.engine.pyproject)
    lock = locks.load(checkout.root, variant)
    locks.check_once(checkout.root, lock, project, matrix.engine, variant, cache)
    try:
        base = bases.choose(checkout.root, store, variant, cache, remote)
    except BaseError as error:
        if not unbuilt:
            raise
        base = bases.out_of_reach(variant, error.what)

    def on(base: Base) -> Plan:
        return decide(
            checkout, matrix, variant, base, lock, project, store, remote, full=full, ci=ci
        )

    plan = on(base)
    if plan.path == "full" and base.digest:
        sparse = remote is not None and remote.publishing
        had = bases.fetch(store, variant, base, cache, sparse=sparse)
        plan = on(had) if had.digest != base.digest else replace(plan, base=had)
    return plan
