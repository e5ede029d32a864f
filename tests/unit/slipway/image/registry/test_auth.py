"""Credentials: found where Docker keeps them or in the environment, shown nowhere."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import pytest

from slipway.errors import ConfigError, ToolMissingError
from slipway.image.registry.auth import Credentials, find_credentials


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    return tmp_path / "config.json"


def helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = tmp_path / "docker-credential-vault"
    program.write_text(f"#!/bin/sh\nread name\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_nobody_is_logged_in_without_a_config(config: Path) -> None:
    assert find_credentials("reg.example") is None


@pytest.mark.parametrize(
    "name",
    ["reg.example:5000", "https://reg.example:5000", "https://reg.example:5000/v2/"],
)
def test_auths_are_found_by_each_form_of_the_host(config: Path, name: str) -> None:
    config.write_text(json.dumps({"auths": {name: {"auth": encoded("ann:s:ecret")}}}))
    assert find_credentials("reg.example:5000") == Credentials("ann", "s:ecret")
    assert find_credentials("reg.example") is None


def test_docker_io_has_a_name_of_its_own(config: Path) -> None:
    auths = {"https://index.docker.io/v1/": {"username": "ann", "password": "pw"}}
    config.write_text(json.dumps({"auths": auths}))
    assert find_credentials("docker.io") == Credentials("ann", "pw")


def test_an_identity_token_is_kept_apart(config: Path) -> None:
    entry = {"auth": encoded("00000000:"), "identitytoken": "idt"}
    config.write_text(json.dumps({"auths": {"reg.example": entry}}))
    found = find_credentials("reg.example")
    assert found is not None
    assert found.identity_token == "idt"


def test_a_helper_of_the_host_goes_before_the_store(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper(
        tmp_path, monkeypatch, 'echo "{\\"Username\\":\\"$name\\",\\"Secret\\":\\"from-helper\\"}"'
    )
    config.write_text(json.dumps({"credHelpers": {"reg.example": "vault"}, "credsStore": "none"}))
    assert find_credentials("reg.example") == Credentials("reg.example", "from-helper")


def test_the_store_serves_where_auths_are_empty(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper(tmp_path, monkeypatch, 'echo "{\\"Username\\":\\"<token>\\",\\"Secret\\":\\"idt\\"}"')
    config.write_text(json.dumps({"auths": {"reg.example": {}}, "credsStore": "vault"}))
    found = find_credentials("reg.example")
    assert found is not None
    assert (found.username, found.identity_token) == ("", "idt")


def test_a_helper_without_an_entry_means_anonymous(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper(tmp_path, monkeypatch, "echo credentials not found in native keychain; exit 1")
    config.write_text(json.dumps({"credsStore": "vault"}))
    assert find_credentials("reg.example") is None


def test_a_missing_helper_is_named(config: Path) -> None:
    config.write_text(json.dumps({"credsStore": "not-there"}))
    with pytest.raises(ToolMissingError, match="docker-credential-not-there"):
        find_credentials("reg.example")


@pytest.mark.parametrize(
    "text",
    ['{"auths": {"reg.example": {"auth": "se-cret!"}}}', '["se-cret!"]', '{"auths": "se-cret!"}'],
)
def test_a_spoiled_config_is_refused_without_quoting_it(config: Path, text: str) -> None:
    config.write_text(text)
    with pytest.raises(ConfigError) as caught:
        find_credentials("reg.example")
    assert "se-cret!" not in caught.value.what + caught.value.remedy


def test_a_config_that_is_no_json_is_named(config: Path) -> None:
    config.write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json"):
        find_credentials("reg.example")


def test_the_environment_goes_before_the_config(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text(json.dumps({"auths": {"reg.example": {"auth": encoded("ann:old")}}}))
    monkeypatch.setenv("SLIPWAY_REGISTRY_USERNAME", "ci")
    monkeypatch.setenv("SLIPWAY_REGISTRY_PASSWORD", "pat")
    assert find_credentials("reg.example") == Credentials("ci", "pat")


def test_the_environments_credentials_are_not_shown_to_other_registries(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIPWAY_REGISTRY_USERNAME", "ci")
    monkeypatch.setenv("SLIPWAY_REGISTRY_PASSWORD", "pat")
    assert find_credentials("docker.io") is None
    monkeypatch.setenv("SLIPWAY_REGISTRY", "git.example")
    assert find_credentials("git.example") == Credentials("ci", "pat")
    assert find_credentials("quay.example") is None


def test_secrets_show_in_no_repr() -> None:
    assert "hush" not in repr(Credentials("ann", "hush", "hush-token"))
