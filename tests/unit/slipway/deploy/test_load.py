"""Sites and topologies are read strictly: a complaint names the file, the table and the key."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slipway.deploy.load import find_deployment, find_root, load_all, load_site
from slipway.deploy.model import Role, settle
from slipway.errors import ConfigError, UsageError

SITE = """
name = "farm"
purpose = "Eight GPUs."
[host]
gpus = 8
network = "host"
[volumes.model]
source = "${MODEL_DIR}"
target = "/models"
[variables.MODEL_DIR]
purpose = "where the models are"
"""

TOPOLOGIES = """
[features.chatty]
purpose = "More in the log."
flags = { log-level = "debug", trace = true }
env = { CHATTY = "1" }

[defaults]
model = "${MODEL_DIR}/big"
flags = { mem-fraction-static = 0.75 }

[topologies.pair]
purpose = "Two engines behind a router."
[topologies.pair.services.a]
role = "serve"
port = 30000
gpus = [0, 1]
tp = 2
features = ["chatty"]
[topologies.pair.services.b]
role = "serve"
port = 30001
gpus = [2, 3]
tp = 2
[topologies.pair.services.door]
role = "router"
port = 30002

[topologies.pair-quiet]
extends = "pair"
purpose = "The same, quiet."
[topologies.pair-quiet.services.a]
features = []
flags = { mem-fraction-static = 0.8 }
"""


def write(folder: Path, site: str = SITE, topologies: str = TOPOLOGIES) -> Path:
    folder = folder / "deploy" / "farm"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "site.toml").write_text(site)
    (folder / "topologies.toml").write_text(topologies)
    return folder


def test_services_stand_in_the_order_of_the_file_with_defaults_under_engines_only(
    tmp_path: Path,
) -> None:
    pair = load_site(write(tmp_path)).topologies["pair"]
    assert [(s.name, s.role, s.gpus, s.tp) for s in pair.services] == [
        ("a", Role.SERVE, (0, 1), 2),
        ("b", Role.SERVE, (2, 3), 2),
        ("door", Role.ROUTER, (), 1),
    ]
    assert pair.services[0].model == "${MODEL_DIR}/big"
    assert pair.services[0].flags == {"mem-fraction-static": 0.75}
    assert pair.services[2].flags == {}
    assert pair.front_door.name == "door"


def test_a_topology_that_extends_another_says_only_what_differs(tmp_path: Path) -> None:
    plan = load_site(write(tmp_path))
    pair, quiet = plan.topologies["pair"], plan.topologies["pair-quiet"]
    assert quiet.services[0].flags == {"mem-fraction-static": 0.8}
    assert quiet.services[0].features == ()
    assert quiet.services[1:] == pair.services[1:]


def test_a_feature_brings_its_flags_and_environment(tmp_path: Path) -> None:
    plan = load_site(write(tmp_path))
    flags, env = settle(plan, plan.topologies["pair"].services[0])
    assert flags == {"log-level": "debug", "trace": True, "mem-fraction-static": 0.75}
    assert env == {"CHATTY": "1"}


def test_a_service_takes_a_flag_of_its_feature_away_with_false(tmp_path: Path) -> None:
    text = TOPOLOGIES.replace('features = ["chatty"]', 'features = ["chatty"]\nflags.trace = false')
    plan = load_site(write(tmp_path, topologies=text))
    assert "trace" not in settle(plan, plan.topologies["pair"].services[0])[0]


def test_two_features_that_disagree_are_refused_unless_the_service_decides(tmp_path: Path) -> None:
    rival = '[features.terse]\npurpose = "Less."\nflags = { log-level = "error" }\n'
    text = rival + TOPOLOGIES.replace('["chatty"]', '["chatty", "terse"]')
    plan = load_site(write(tmp_path, topologies=text))
    with pytest.raises(ConfigError, match="feature terse sets flag --log-level to 'error'"):
        settle(plan, plan.topologies["pair"].services[0])
    decided = text.replace('"terse"]', '"terse"]\nflags.log-level = "info"')
    plan = load_site(write(tmp_path, topologies=decided))
    assert settle(plan, plan.topologies["pair"].services[0])[0]["log-level"] == "info"


@pytest.mark.parametrize(
    ("file", "old", "new", "says"),
    [
        (
            "site",
            'name = "farm"',
            'name = "form"',
            "site.toml: the top of the file name: is 'form'",
        ),
        ("site", "gpus = 8", 'gpus = "8"', "site.toml: [host] gpus: must be a whole number"),
        ("site", "gpus = 8", "gpu = 8", "site.toml: [host] gpu: is not known here"),
        ("site", '"host"', '"lan"', "[host] network: must be one of bridge, host"),
        ("site", "source =", "read-only = 1\nsource =", "[volumes.model] read-only: must be true"),
        ("site", "${MODEL_DIR}", "${MODELS}", "[volumes.model] source: ${MODELS} is not declared"),
        ("site", "where the", "the } where", "[variables.MODEL_DIR]: a brace"),
        ("topologies", "port = 30000", "port = 70000", "topologies.pair.services.a] port: must be"),
        ("topologies", "port = 30000\n", "", "[topologies.pair.services.a] port: is missing"),
        ("topologies", "tp = 2", "tp = 0", "services.a] tp: must be at least 1, not 0"),
        ("topologies", "[0, 1]", "[0, 8]", "services.a] gpus: [8] are not among the host's 8"),
        ("topologies", "[0, 1]", '["0"]', "services.a] gpus: must be a list of GPU indices"),
        ("topologies", '["chatty"]', '["chaty"]', "features: 'chaty' is not declared"),
        ("topologies", '"serve"', '"server"', "services.a] role: must be one of serve, prefill"),
        ("topologies", "log-level", '"--log-level"', "write '--log-level' without its dashes"),
        ("topologies", 'CHATTY = "1"', "CHATTY = 1", "[features.chatty] env: CHATTY must be"),
        ("topologies", '"pair"', '"pear"', "[topologies.pair-quiet] extends: 'pear' is no"),
        ("topologies", '"pair"', '"pair-quiet"', "extends: 'pair-quiet' extends it in turn"),
        ("topologies", "gpus = [0, 1]", 'publish = "x:1"', "publish: a site on the host's network"),
        ("topologies", "[features.chatty]", "[features.chatty", "topologies.toml: not TOML:"),
    ],
)
def test_a_mistake_is_named_by_file_table_and_key(
    tmp_path: Path, file: str, old: str, new: str, says: str
) -> None:
    texts = {"site": SITE, "topologies": TOPOLOGIES}
    assert old in texts[file]
    texts[file] = texts[file].replace(old, new, 1)
    with pytest.raises(ConfigError, match=re.escape(says)):
        load_site(write(tmp_path, **texts))


def test_the_remedy_for_a_misspelt_key_is_the_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_site(write(tmp_path, topologies=TOPOLOGIES.replace("features = [", "featurs = [", 1)))
    assert caught.value.remedy == "did you mean features?"


def test_a_deployment_is_found_by_site_and_topology(tmp_path: Path) -> None:
    write(tmp_path)
    plans = load_all(find_root(tmp_path / "deploy" / "farm"))
    plan, topology = find_deployment(plans, "farm-pair-quiet")
    assert (plan.site.name, topology.name) == ("farm", "pair-quiet")
    with pytest.raises(UsageError) as caught:
        find_deployment(plans, "farm-pear")
    assert "farm-pair" in caught.value.remedy


def test_outside_of_a_checkout_the_remedy_is_to_go_into_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no folder from"):
        find_root(tmp_path)
