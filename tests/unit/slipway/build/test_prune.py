"""Old builds go; what anything refers to stays."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from slipway.build.catalog import Local
from slipway.build.prune import judge, pinned_digests, prune
from slipway.build.tags import is_alias, parse_image_tag
from slipway.errors import StorageError
from support.project import Project

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def digest(number: int) -> str:
    return f"sha256:{number:064x}"


def stays(names: dict[str, int], **settings: object) -> set[str]:
    """Names that stay; `names` gives each one's image by number."""
    options: dict[str, object] = {"keep": 1, "keep_days": 0, "now": NOW, **settings}
    pinned = {digest(n) for n in options.pop("pinned", ())}  # type: ignore[attr-defined]
    keys = {digest(n): key for n, key in options.pop("keys", {}).items()}  # type: ignore[attr-defined]
    verdicts = judge({n: digest(d) for n, d in names.items()}, keys, pinned, **options)  # type: ignore[arg-type]
    return {name for verdict in verdicts if verdict.keep for name in verdict.names}


def build(day: int, branch: str = "main", suffix: str = "", origin: str = "ci") -> str:
    return f"{branch}-{day:09x}-{origin}-202602{day:02}-1200{suffix}"


def test_the_newest_of_each_line_stay() -> None:
    names = {
        build(1): 1,
        build(2): 2,
        build(3): 3,
        build(1, "dev"): 4,
        build(1, suffix="-cu130"): 5,
    }
    names |= {build(1, origin="local"): 6}
    gone = set(names) - stays(names)
    assert gone == {build(1), build(2)}
    assert set(names) - stays(names, keep=2) == {build(1)}


def test_young_builds_stay() -> None:
    names = {build(day): day for day in (1, 20, 28)}
    assert set(names) - stays(names, keep_days=14) == {build(1)}


@pytest.mark.parametrize("other", ["main-latest", "main-latest-local-cu130", "v1.0", "stable"])
def test_what_an_alias_or_a_release_names_stays(other: str) -> None:
    names = {build(1): 1, build(2): 2, other: 1}
    assert build(1) in stays(names)


def test_what_a_deployment_pins_stays() -> None:
    names = {build(1): 1, build(2): 2}
    assert build(1) in stays(names, pinned=(1,))


def test_deps_images_stay_as_long_as_what_stands_on_them() -> None:
    names = {build(1): 1, build(2): 2, "deps-cpu-" + "a" * 12: 3, "deps-cpu-" + "b" * 12: 4}
    keys = {1: "a" * 64, 2: "b" * 64}
    assert "deps-cpu-" + "b" * 12 in stays(names, keys=keys)
    assert "deps-cpu-" + "a" * 12 not in stays(names, keys=keys)


def test_what_refers_to_an_image_stays_and_goes_with_it() -> None:
    def referrers(number: int) -> str:
        return digest(number).replace(":", "-")

    names = {build(1): 1, build(2): 2, "main-latest": 2, referrers(1): 11, referrers(2): 12}
    assert set(names) - stays(names) == {build(1), referrers(1)}
    assert referrers(3) in stays({referrers(3): 13}, pinned={3})


def test_committed_deployments_are_read(project: Project) -> None:
    project.write("deploy/site/dockerserve-x.yml", f"image: a/b@{digest(7)}\n")
    project.write("deploy/site/archive-20260101/old.yml", f"image: a/b@{digest(8)}\n")
    assert pinned_digests(project.root) == {digest(7), digest(8)}


def test_pruning_frees_what_only_old_images_had(project: Project) -> None:
    first = project.build()
    project.write("src/tiny/core/work.py", "VALUE = 2\n")
    project.commit()
    second = project.build()
    old, new = ({x.descriptor.digest for x in b.image.layers} for b in (first, second))
    shelf = Local(project.store)
    dry = prune(shelf, project.root, keep=0, keep_days=0, dry_run=True)
    assert [v.names for v in dry if not v.keep] == [(first.tag,)]
    assert first.tag in project.store.tags()
    prune(shelf, project.root, keep=0, keep_days=0, dry_run=False)
    assert first.tag not in project.store.tags()
    assert old - new
    assert not [blob for blob in old - new if project.store.has(blob)]
    again = project.store.read_image(second.tag)
    assert again is not None
    assert all(project.store.has(x.descriptor.digest) for x in again.layers)
    assert project.build().image.digest == second.image.digest


def test_no_pruning_while_a_build_writes(project: Project) -> None:
    project.build()
    with project.store.building(), pytest.raises(StorageError, match="a build is writing"):
        project.store.collect()


def test_names_are_read_back() -> None:
    tag = parse_image_tag("feature-x-abc-012345678-local-20260102-0304-2-dirty-rocm720-mi35x")
    assert tag is not None
    assert (tag.slug, tag.commit, tag.origin, tag.variant) == (
        "feature-x-abc",
        "012345678",
        "local",
        "rocm720-mi35x",
    )
    for name in ("main-latest", "v1.0", "deps-cpu-0123456789ab"):
        assert parse_image_tag(name) is None
    assert is_alias("main-latest-local-cu130")
    assert not is_alias("v1-latestish")
