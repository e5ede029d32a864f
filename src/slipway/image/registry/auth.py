"""Who we are to a registry: credentials as Docker keeps them, and the tokens made of them.

Sources: Docker's config file (`auths`, `credHelpers`, `credsStore`), `SLIPWAY_REGISTRY_USERNAME`
and `SLIPWAY_REGISTRY_PASSWORD`. Secrets never reach a log, a message or a repr.
"""

from __future__ import annotations

import base64
import json
import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path

from slipway.errors import ConfigError, ToolMissingError

_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
# Docker's name for its own registry in the config file.
_DOCKER_IO = "https://index.docker.io/v1/"


@dataclass(frozen=True)
class Credentials:
    """A user and a secret; the secret shows in no repr."""

    username: str
    password: str = field(repr=False)

    @property
    def basic(self) -> str:
        """The value of an `Authorization: Basic` header."""
        raw = f"{self.username}:{self.password}".encode()
        return f"Basic {base64.b64encode(raw).decode()}"


@dataclass(frozen=True)
class Challenge:
    """What a 401 asks for: the scheme (lower case) and its parameters."""

    scheme: str
    realm: str = ""
    service: str = ""
    scope: str = ""


@dataclass(frozen=True)
class Token:
    """A bearer token and the moment (monotonic seconds) from which it is not used any more."""

    value: str = field(repr=False)
    until: float


def parse_challenge(header: str) -> Challenge:
    """Read `WWW-Authenticate` (RFC 9110, and the distribution token spec)."""
    scheme, _, rest = header.partition(" ")
    found = dict(_CHALLENGE.findall(rest))
    return Challenge(
        scheme.lower(), found.get("realm", ""), found.get("service", ""), found.get("scope", "")
    )


def parse_token(body: bytes) -> Token:
    """Read a token server's answer; a token without `expires_in` lives 60 seconds."""
    answer = json.loads(body)
    value = answer.get("token") or answer.get("access_token")
    if not isinstance(value, str) or not value:
        raise ValueError("the answer holds no token")
    lifetime = float(answer.get("expires_in") or 60)
    # Spent a little early, so that none runs out on its way.
    return Token(value, time.monotonic() + max(lifetime * 0.8, lifetime - 30))


def find_credentials(host: str) -> Credentials | None:
    """The credentials for a registry, or None for anonymous.

    Raises:
        ConfigError: Docker's config file is no JSON.
        ToolMissingError: it names a helper that is not installed.
    """
    username = os.environ.get("SLIPWAY_REGISTRY_USERNAME")
    password = os.environ.get("SLIPWAY_REGISTRY_PASSWORD")
    if username and password:
        return Credentials(username, password)
    folder = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}", "correct it, or docker login") from error
    names = [_DOCKER_IO, "docker.io"] if host == "docker.io" else [host, f"https://{host}"]
    for name in names:
        helper = (config.get("credHelpers") or {}).get(name)
        if helper and (found := _ask_helper(helper, name)):
            return found
        entry = (config.get("auths") or {}).get(name)
        if entry:
            if entry.get("auth"):
                user, _, secret = base64.b64decode(entry["auth"]).decode().partition(":")
                return Credentials(user, secret.rstrip("\0"))
            if entry.get("username") and entry.get("password"):
                return Credentials(entry["username"], entry["password"])
    store = config.get("credsStore")
    for name in names if store else ():
        if found := _ask_helper(store, name):
            return found
    return None


def _ask_helper(helper: str, name: str) -> Credentials | None:
    """Ask `docker-credential-<helper> get` (docker-credential-helpers protocol)."""
    import subprocess

    program = f"docker-credential-{helper}"
    try:
        done = subprocess.run(
            [program, "get"], input=name.encode(), capture_output=True, timeout=30
        )
    except FileNotFoundError as error:
        raise ToolMissingError(
            f"Docker's config file names the credential helper {program}, which is not installed",
            "install it, or set SLIPWAY_REGISTRY_USERNAME and SLIPWAY_REGISTRY_PASSWORD",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise ToolMissingError(f"{program} did not answer within 30 s") from error
    if done.returncode:
        return None
    answer = json.loads(done.stdout)
    return Credentials(answer.get("Username", ""), answer.get("Secret", ""))
