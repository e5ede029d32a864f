"""The matrix says which table and key is wrong."""

from __future__ import annotations

import pytest

from slipway.build import matrix as matrices
from slipway.errors import ConfigError, UsageError
from support.project import MATRIX, Project


def test_it_is_read(project: Project) -> None:
    matrix = matrices.load(project.root)
    variant = matrix.variant("cpu")
    assert matrix.engine.package == "tiny"
    assert str(variant.platform) == "linux/amd64"
    assert variant.own_layer == ("big",)
    assert variant.rootfs is not None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('python = "3.11"', "python = 3.11", r"\[variants.cpu\] python is 3.11"),
        ('suite = "bookworm"', "", r"\[variants.cpu.rootfs\] suite"),
        ('name = "tiny"', 'name = "tiny"\nnome = 1', r"\[engine\] has no key 'nome'"),
        ("[image]", "[imago]", r"\[image\] is missing"),
        ('default-variant = "cpu"', 'default-variant = "gpu"', "default-variant 'gpu'"),
        ("[engine]", "[engine", "docker/matrix.toml"),
        ('"linux/amd64"', "", r"platforms is \[\]"),
        ('"linux/amd64"', '"linux/riscv64"', r"platforms is \['linux/riscv64'\]"),
        ('"linux/amd64"', '"linux/amd64", "linux/amd64"', r"platforms is \['linux/amd64', 'l"),
    ],
)
def test_what_is_wrong_is_named(project: Project, old: str, new: str, message: str) -> None:
    project.write("docker/matrix.toml", MATRIX.replace(old, new, 1))
    with pytest.raises(ConfigError, match=message):
        matrices.load(project.root)


def test_an_unknown_variant_gets_the_list(project: Project) -> None:
    with pytest.raises(UsageError, match="no variant 'cu999'") as caught:
        matrices.load(project.root).variant("cu999")
    assert "cpu" in caught.value.remedy


def test_a_missing_matrix_is_named(project: Project) -> None:
    (project.root / "docker/matrix.toml").unlink()
    with pytest.raises(ConfigError, match=r"no docker/matrix\.toml"):
        matrices.load(project.root)


def test_a_row_for_two_platforms_is_two_variants(project: Project) -> None:
    two = MATRIX.replace('"linux/amd64"', '"linux/amd64", "linux/arm64"')
    project.write("docker/matrix.toml", two)
    matrix = matrices.load(project.root)
    assert {name: str(one.platform) for name, one in matrix.variants.items()} == {
        "cpu": "linux/amd64",
        "cpu-arm64": "linux/arm64",
    }
    assert [one.name for one in matrix.rows["cpu"]] == ["cpu", "cpu-arm64"]


def test_a_row_cannot_take_the_name_of_another_ones_platform(project: Project) -> None:
    two = MATRIX.replace('"linux/amd64"', '"linux/amd64", "linux/arm64"')
    row = two[two.index("[variants.cpu]") :].replace("variants.cpu", "variants.cpu-arm64")
    project.write("docker/matrix.toml", two + row)
    with pytest.raises(ConfigError, match="two images of the name 'cpu-arm64'"):
        matrices.load(project.root)
