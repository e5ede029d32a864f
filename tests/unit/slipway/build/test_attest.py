"""SBOM and provenance follow from the image, and agree with what is really in it."""

from __future__ import annotations

import json

from slipway.build import attest, catalog
from slipway.build.git import Checkout
from slipway.image import contents
from slipway.image.layer import File, LayerWriter, write_layer
from slipway.image.model import append
from support.project import Project


def test_the_sbom_lists_what_the_layers_install(project: Project) -> None:
    built = project.build()
    bom = attest.sbom(built.image)
    version = built.plan.version.text
    assert attest.listed(bom) == {("big", "2.5"), ("small", "1.0"), ("tiny", version)}
    tree = contents.read(built.image.layers)
    assert attest.against_layers(bom, tree) == []
    assert bom["metadata"]["component"]["bom-ref"] == built.image.digest
    [big] = [c for c in bom["components"] if c["name"] == "big"]
    assert big["purl"] == "pkg:pypi/big@2.5"
    [base] = [c for c in bom["components"] if c["type"] == "container"]
    assert base["hashes"][0]["content"] == built.plan.base.digest.removeprefix("sha256:")


def test_notes_and_layers_say_the_same(project: Project) -> None:
    image = project.build().image
    assert attest.listed(attest.sbom(image)) == attest.listed(attest.sbom(image, deep=True))


def test_a_build_that_takes_known_layers_has_the_same_sbom(project: Project) -> None:
    assert attest.sbom(project.build().image) == attest.sbom(project.build().image)


def test_what_is_installed_behind_the_sboms_back_is_found(project: Project) -> None:
    image = project.build().image

    def fill(writer: LayerWriter) -> None:
        text = b"Metadata-Version: 2.1\nName: sneaky\nVersion: 6.6\n"
        writer.add(File("opt/tiny/venv/lib/sneaky-6.6.dist-info/METADATA", text))

    layer = write_layer(project.store, fill, roots=[], key="", created_by="")
    odd = append(image, [contents.note_packages(layer, [])])
    wrong = catalog.verify(odd, Checkout(project.root), [attest.sbom(odd)])
    assert wrong == ["sneaky 6.6 is installed, and the SBOM does not list it"]


def test_provenance_names_commit_base_and_lock(project: Project) -> None:
    built = project.build()
    statement = attest.provenance(built.image, built.plan)
    assert statement["subject"][0]["digest"]["sha256"] == built.image.digest.removeprefix("sha256:")
    git, base, lock = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert git["digest"]["gitCommit"] == project.git("rev-parse", "HEAD")
    assert base["digest"]["sha256"] == built.plan.base.digest.removeprefix("sha256:")
    assert {entry.split()[0] for entry in json.loads(lock["content"])} == {"big==2.5", "small==1.0"}
    again = project.build()
    assert attest.provenance(again.image, again.plan) == statement
