"""Who we are to a registry: credentials from where Docker keeps them, or from the environment.

Sources: Docker's config file (`auths`, `credHelpers`, `credsStore`), `SLIPWAY_REGISTRY_USERNAME`
and `SLIPWAY_REGISTRY_PASSWORD`. Secrets never reach a log, a message or a repr.
"""

from __future__ import annotations

import base64
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slipway.errors import ConfigError, ToolMissingError

# Docker's name for its own registry in the config file.
_DOCKER_IO = "https://index.docker.io/v1/"
# The user name under which helpers keep an identity token (docker-credential-helpers).
_TOKEN_USER = "<token>"
_HELPER_SECONDS = 30


@dataclass(frozen=True)
class Credentials:
    """A user and a secret, or an identity token; secrets show in no repr."""

    username: str
    password: str = field(repr=False)
    identity_token: str = field(default="", repr=False)

    @property
    def basic(self) -> str:
        """The value of an `Authorization: Basic` header (RFC 7617)."""
        raw = f"{self.username}:{self.password}".encode()
        return f"Basic {base64.b64encode(raw).decode()}"


def find_credentials(host: str) -> Credentials | None:
    """The credentials for a registry, or None for anonymous.

    The environment's are those of one registry: the one that `SLIPWAY_REGISTRY` names. Where it
    names none they serve for every host but docker.io, so that pulling a public base does not show
    them to a stranger.

    Raises:
        ConfigError: Docker's config file cannot be read.
        ToolMissingError: it names a helper that is not installed or does not answer.
    """
    username = os.environ.get("SLIPWAY_REGISTRY_USERNAME")
    password = os.environ.get("SLIPWAY_REGISTRY_PASSWORD")
    meant = os.environ.get("SLIPWAY_REGISTRY", "")
    if username and password and (meant == host if meant else host != "docker.io"):
        return Credentials(username, password)
    path = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker") / "config.json"
    try:
        config = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path} cannot be read: {type(error).__name__}", "correct it, or docker login again"
        ) from error
    try:
        return _find(host, config)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        # Without the cause's text, which may quote a secret.
        raise ConfigError(
            f"{path} is not as Docker writes it, where it is about {host}",
            f"docker logout {host}, then docker login {host}",
        ) from error


def _find(host: str, config: dict[str, Any]) -> Credentials | None:
    names = [
        host,
        f"https://{host}",
        f"http://{host}",
        f"https://{host}/v1/",
        f"https://{host}/v2/",
    ]
    if host == "docker.io":
        names = [_DOCKER_IO, "docker.io", "index.docker.io"]
    helpers = config.get("credHelpers") or {}
    for name in names:
        if (helper := helpers.get(name)) and (found := _ask_helper(helper, name)):
            return found
    if store := config.get("credsStore"):
        for name in names:
            if found := _ask_helper(store, name):
                return found
    entries = config.get("auths") or {}
    for name in names:
        entry = entries.get(name) or {}
        username, password = entry.get("username") or "", entry.get("password") or ""
        if entry.get("auth"):
            raw = base64.b64decode(entry["auth"], validate=True).decode()
            username, _, password = raw.partition(":")
        if entry.get("identitytoken"):
            return Credentials(username, "", entry["identitytoken"])
        if username and password:
            return Credentials(username, password.rstrip("\0"))
    return None


def _ask_helper(helper: str, name: str) -> Credentials | None:
    """Ask `docker-credential-<helper> get` (docker-credential-helpers protocol).

    A helper that has nothing for `name` ends with an error, which is not told from others.
    """
    import subprocess

    program = f"docker-credential-{helper}"
    try:
        done = subprocess.run(
            [program, "get"], input=name.encode(), capture_output=True, timeout=_HELPER_SECONDS
        )
    except OSError as error:
        raise ToolMissingError(
            f"Docker's config file names the credential helper {program}, which cannot be run",
            "install it, or set SLIPWAY_REGISTRY_USERNAME and SLIPWAY_REGISTRY_PASSWORD",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise ToolMissingError(
            f"{program} did not answer within {_HELPER_SECONDS} s",
            f"see what it waits for: echo {name} | {program} get",
        ) from error
    if done.returncode:
        return None
    answer = json.loads(done.stdout)
    username, secret = str(answer.get("Username") or ""), str(answer.get("Secret") or "")
    if username == _TOKEN_USER:
        return Credentials("", "", secret)
    return Credentials(username, secret) if secret else None
