"""Retiring: files move to the archive as they were, the table remembers, nothing else changes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from slipway.deploy.load import load_all, load_site
from slipway.deploy.render import drift
from slipway.deploy.retire import find_table, retire
from slipway.errors import ConfigError, UsageError

DATA = Path(__file__).parent / "data"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    shutil.copytree(DATA / "farm", tmp_path / "deploy" / "farm")
    for path, text in drift(load_all(tmp_path), tmp_path).items():
        path.write_text(text)
    return tmp_path


def test_a_retired_topology_moves_to_the_archive_and_is_not_rendered_again(root: Path) -> None:
    folder = root / "deploy" / "farm"
    text = (folder / "dockerserve-3p1d.yml").read_text()
    plan, found = find_table(load_all(root), "farm-3p1d")
    moved = retire(plan, found, root, "20260924")
    assert moved == [folder / "archive-20260924" / "dockerserve-3p1d.yml"]
    assert moved[0].read_text() == text
    assert not (folder / "dockerserve-3p1d.yml").exists()
    after = load_site(folder)
    assert after.retired["3p1d"].retired == "20260924"
    assert list(after.topologies) == [name for name in plan.topologies if name != "3p1d"]
    assert drift(load_all(root), root) == {}
    with pytest.raises(UsageError, match="farm-3p1d was retired on 20260924"):
        find_table(load_all(root), "farm-3p1d")


def test_what_extends_a_retired_topology_stays_in_use(root: Path) -> None:
    source = root / "deploy" / "farm" / "topologies.toml"
    source.write_text(f'{source.read_text()}\n[topologies.heir]\nextends = "3p1d"\n')
    plan, found = find_table(load_all(root), "farm-3p1d")
    retire(plan, found, root, "20260924")
    heir = load_all(root)["farm"].topologies["heir"]
    assert (heir.retired, heir.services) == ("", found[0].services)


def test_one_slot_of_several_is_not_retired_alone(root: Path) -> None:
    source = root / "deploy" / "farm" / "topologies.toml"
    site = source.with_name("site.toml")
    site.write_text(f"{site.read_text()}\n[slots.front]\ngpus = [0, 1]\n")
    source.write_text(source.read_text().replace('["back"]', '["back", "front"]'))
    with pytest.raises(UsageError, match="is one of 2 slots of one table"):
        find_table(load_all(root), "farm-with-store-back")
    _, both = find_table(load_all(root), "farm-with-store")
    assert [topology.slot for topology in both] == ["back", "front"]


def test_a_table_that_cannot_be_marked_is_left_alone(root: Path) -> None:
    source = root / "deploy" / "farm" / "topologies.toml"
    text = source.read_text().replace("[topologies.3p1d]", "[topologies . 3p1d]")
    source.write_text(text)
    plan, found = find_table(load_all(root), "farm-3p1d")
    with pytest.raises(ConfigError, match="is not a line of its own"):
        retire(plan, found, root, "20260924")
    assert source.read_text() == text
    assert (source.parent / "dockerserve-3p1d.yml").exists()


def test_an_unknown_name_lists_what_there_is(root: Path) -> None:
    with pytest.raises(UsageError) as caught:
        find_table(load_all(root), "farm-x")
    assert "farm-3p1d" in caught.value.remedy
