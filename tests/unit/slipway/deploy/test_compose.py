"""Compose files are read as Compose reads them: interpolation, and every short and long form."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipway.deploy.compose import Mount, PublishedPort, interpolate, read_compose
from slipway.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "gives"),
    [
        ("${SET}", "value"),
        ("$SET-x", "value-x"),
        ("${UNSET}", ""),
        ("$$SET and $$", "$SET and $"),
        ("${SET:-other}", "value"),
        ("${UNSET:-other}", "other"),
        ("${EMPTY:-other}", "other"),
        ("${EMPTY-other}", ""),
        ("${UNSET:-${SET}}", "value"),
        ("${SET:+there}${UNSET:+there}", "there"),
        ("${UNSET:?a reason, at length}", "<UNSET>"),
        ("${SET:?a reason}", "value"),
        ("cost: 5$", "cost: 5$"),
    ],
)
def test_interpolation_follows_compose(text: str, gives: str) -> None:
    assert interpolate(text, {"SET": "value", "EMPTY": ""}) == gives


def read(tmp_path: Path, text: str, **env: str):  # type: ignore[no-untyped-def]
    path = tmp_path / "compose.yml"
    path.write_text(text)
    return read_compose(path, env)


def test_short_and_long_forms_are_one(tmp_path: Path) -> None:
    file = read(
        tmp_path,
        """
services:
  short:
    image: keel
    command: serve --port 1 --name 'two words'
    environment: [A=1, B]
    ports: ["127.0.0.1:80:30000", "9000-9001:9000-9001/udp", "7", "[::1]:6:5"]
    volumes: ["/data:/models:ro", "cache:/cache"]
  long:
    image: keel
    command: [serve, --port, "1", --name, two words]
    environment: {A: 1, B: }
    ports:
      - {target: 30000, published: "80", host_ip: 127.0.0.1}
      - {target: 9000, published: 9000}
    volumes:
      - {type: bind, source: /data, target: /models, read_only: true}
""",
    )
    short, long = file.services
    assert short.words == long.words == ("serve", "--port", "1", "--name", "two words")
    assert short.environment == long.environment == {"A": "1", "B": ""}
    assert short.ports == (
        PublishedPort(30000, 80, "127.0.0.1"),
        PublishedPort(9000, 9000),
        PublishedPort(9001, 9001),
        PublishedPort(7, None),
        PublishedPort(5, 6, "::1"),
    )
    assert long.ports == (PublishedPort(30000, 80, "127.0.0.1"), PublishedPort(9000, 9000))
    assert short.mounts == (Mount("/data", "/models", True), Mount("cache", "/cache", False))
    assert long.mounts == (Mount("/data", "/models", True),)


def test_anchors_and_merges_are_followed_and_lines_are_known(tmp_path: Path) -> None:
    file = read(
        tmp_path,
        """x-common: &common
  image: keel:1
  privileged: true
services:
  a:
    <<: *common
    command: serve
""",
    )
    [a] = file.services
    assert (a.image, a.privileged, a.line) == ("keel:1", True, 5)


def test_a_variable_that_is_not_set_publishes_no_known_port(tmp_path: Path) -> None:
    text = 'services: {a: {image: k, ports: ["${PORT:?choose}:30000"]}}'
    assert read(tmp_path, text).services[0].ports == (PublishedPort(30000, None),)
    assert read(tmp_path, text, PORT="8").services[0].ports == (PublishedPort(30000, 8),)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [", "not YAML"),
        ("a: 1\na: 2\n", "not YAML"),
        ("[]", "no services"),
        ("services: {}", "no services"),
        ("services: {a: 3}", "service a must be a table, not 3"),
        ('services: {a: {command: "serve \'open"}}', "cannot be split into words"),
        ("services: {a: {command: {x: 1}}}", "command must be a string or a list"),
        ("services: {a: {ports: [a-b]}}", "service a: ports or volumes"),
        ('services: {a: {ports: ["1-3:1-2"]}}', "the two ranges differ in length"),
        ("services: {a: {healthcheck: x}}", "healthcheck must be a table"),
    ],
)
def test_what_is_no_compose_file_is_said_in_one_sentence(
    tmp_path: Path, text: str, says: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert says in caught.value.what
    assert "\n" not in caught.value.what


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.yml does not exist"):
        read_compose(tmp_path / "missing.yml")
