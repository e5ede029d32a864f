"""Images that are there: listed, compared, promoted by digest, held against git."""

from __future__ import annotations

import pytest

from slipway.build import catalog
from slipway.build.catalog import Local
from slipway.build.git import Checkout
from slipway.errors import TagTakenError, UsageError
from slipway.image.layer import File, LayerWriter, write_layer
from slipway.image.model import append, with_labels
from support.project import Project, lock_line, make_wheel


def test_a_listing_has_each_image_once_with_all_names(project: Project) -> None:
    built = project.build()
    [row] = catalog.listing(Local(project.store))
    assert row.names == (built.tag, "main-latest-local")
    assert (row.digest, row.bytes) == (built.image.digest, built.image.size)
    names = {n for row in catalog.listing(Local(project.store), everything=True) for n in row.names}
    assert {built.plan.deps_tag, "base-cpu"} < names


def test_promotion_names_the_same_digest_and_never_another(project: Project) -> None:
    first = project.build()
    shelf = Local(project.store)
    assert catalog.promote(shelf, first.tag, "v1.0") == first.image.digest
    assert catalog.promote(shelf, first.tag, "v1.0") == first.image.digest
    project.write("src/tiny/core/work.py", "VALUE = 2\n")
    second = project.build()
    with pytest.raises(TagTakenError, match=r"v1\.0"):
        catalog.promote(shelf, second.tag, "v1.0")
    assert catalog.promote(shelf, second.tag, "v1.0", move=True) == second.image.digest
    catalog.promote(shelf, first.tag, "stable-latest")
    assert catalog.promote(shelf, second.tag, "stable-latest") == second.image.digest


def test_a_build_s_own_names_are_not_given_away(project: Project) -> None:
    built = project.build()
    for name in (built.tag, "deps-cpu-123456789abc", "base-cpu"):
        with pytest.raises(UsageError, match="a name that a build gives"):
            catalog.promote(Local(project.store), built.tag, name)


def test_a_name_that_is_not_there_gets_the_list(project: Project) -> None:
    built = project.build()
    with pytest.raises(UsageError, match="no image nope") as caught:
        catalog.must(Local(project.store), "nope")
    assert built.tag in caught.value.remedy
    assert "deps-" not in caught.value.remedy


def test_a_difference_names_packages_files_and_bytes(project: Project) -> None:
    first = project.build()
    small = make_wheel(project.wheels, "small", "1.1", {"small/new.py": b""})
    kept = lock_line(project.wheels / "big-2.5-py3-none-any.whl")
    project.write("docker/locks/cpu.txt", lock_line(small) + kept)
    project.write("src/tiny/core/work.py", "VALUE = 2\n")
    (project.root / "src/tiny/extra/__init__.py").unlink()
    project.commit()
    second = project.build()
    found = catalog.diff(first.image, second.image)
    assert "~ small 1.0 -> 1.1" in found.packages
    assert "~ opt/tiny/src/tiny/core/work.py" in found.files
    assert "- opt/tiny/src/tiny/extra/__init__.py" in found.files
    assert not [line for line in found.files if "big" in line]
    assert any(line.startswith("~ org.slipway.dependency-key ") for line in found.labels)
    assert 0 < found.bytes_moved < second.image.size
    assert catalog.diff(first.image, first.image) == catalog.Difference([], [], [], [], [], 0)


def test_a_sound_image_verifies(project: Project) -> None:
    built = project.build()
    assert catalog.verify(built.image, Checkout(project.root)) == []


def test_source_that_git_does_not_have_is_found(project: Project) -> None:
    built = project.build()

    def fill(writer: LayerWriter) -> None:
        writer.add(File("opt/tiny/src/tiny/cli.py", b"import evil\n"))
        writer.add(File("opt/tiny/src/tiny/evil.py", b""))

    layer = write_layer(project.store, fill, roots=[], key="", created_by="")
    wrong = catalog.verify(append(built.image, [layer]), Checkout(project.root))
    commit = built.plan.commit[:9]
    assert wrong == [
        f"opt/tiny/src/tiny/cli.py differs from commit {commit}",
        f"opt/tiny/src/tiny/evil.py is not in commit {commit}",
    ]


def test_labels_that_lie_are_found(project: Project) -> None:
    image = project.build().image
    checkout = Checkout(project.root)
    unknown = with_labels(image, {"org.slipway.commit": "0" * 40})
    assert catalog.verify(unknown, checkout) == [f"commit 000000000 is not in {project.root}"]
    version = with_labels(image, {"org.opencontainers.image.version": "9.9"})
    assert "9.9" in catalog.verify(version, checkout)[0]
    missing = with_labels(image, {"org.slipway.dependency-key": ""})
    assert "dependency-key is missing" in catalog.verify(missing, checkout)[0]


def test_a_damaged_layer_is_found(project: Project) -> None:
    image = project.build().image
    path = project.store.blob_path(image.layers[-1].descriptor.digest)
    path.write_bytes(path.read_bytes()[:-9] + b"\0" * 9)
    [wrong] = catalog.verify(image, None)
    assert image.layers[-1].descriptor.digest in wrong
