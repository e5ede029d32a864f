"""What a 401 asks for, and the `Authorization` headers that answer it (Basic, Bearer tokens).

Sources: RFC 9110 section 11, and the distribution project's token specification.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlencode, urlsplit

from slipway.errors import RegistryError
from slipway.image.registry.auth import Credentials, find_credentials

# A parameter, or the scheme that begins the next challenge of the same header.
_PART = re.compile(r'([A-Za-z][\w-]*)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))|([A-Za-z][\w-]*)')
# A token server that says nothing about it gives tokens of 60 seconds (token specification).
_LIFETIME = 60.0

# Sends (method, url, headers, body), gives back the body of the answer 200.
Fetch = Callable[[str, str, Mapping[str, str], bytes | None], bytes]


@dataclass(frozen=True)
class Challenge:
    """What a 401 asks for: the scheme (lower case) and its parameters."""

    scheme: str = ""
    realm: str = ""
    service: str = ""
    scope: str = ""


@dataclass(frozen=True)
class Token:
    """A bearer token and the moment (monotonic seconds) from which it is not used any more."""

    value: str = field(repr=False)
    until: float


def parse_challenges(header: str) -> list[Challenge]:
    """Read a `WWW-Authenticate` header, which may hold several challenges."""
    found: list[tuple[str, dict[str, str]]] = []
    for match in _PART.finditer(header):
        name, quoted, bare, scheme = match.groups()
        if scheme:
            found.append((scheme.lower(), {}))
        elif found:
            value = bare if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
            found[-1][1].setdefault(name.lower(), value)
    return [
        Challenge(scheme, got.get("realm", ""), got.get("service", ""), got.get("scope", ""))
        for scheme, got in found
    ]


def parse_token(body: bytes) -> Token:
    """Read a token server's answer.

    Raises:
        ValueError: it holds no token that could stand in a header.
    """
    answer = json.loads(body)
    if not isinstance(answer, dict):
        raise ValueError("the answer is no object")
    value = answer.get("token") or answer.get("access_token")
    if not isinstance(value, str) or not re.fullmatch(r"[!-~]+", value):
        raise ValueError("the answer holds no token")
    said = answer.get("expires_in")
    lifetime = float(said) if isinstance(said, int | float) and said > 0 else _LIFETIME
    # Spent a little early, so that none runs out on its way.
    return Token(value, time.monotonic() + max(lifetime * 0.8, lifetime - 30))


def covers(held: str, wanted: str) -> bool:
    """Whether a token for the scopes `held` also serves for those `wanted`."""
    have = _actions(held)
    return all(need <= have.get(what, set()) for what, need in _actions(wanted).items())


def _actions(scope: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for entry in scope.split():
        what, _, actions = entry.rpartition(":")
        found.setdefault(what, set()).update(actions.split(","))
    return found


class Authorizer:
    """The `Authorization` header for one registry, shared by threads.

    It learns from the first 401 what the registry wants; from then on tokens are fetched before
    they are needed, one for all requests that its scope covers.

    Args:
        host: as it stands in image names.
        encrypted: whether the registry is spoken to over TLS.
        credentials: None to look where Docker keeps them, when first asked for.
        fetch: sends a request to the token server.
    """

    def __init__(
        self, host: str, encrypted: bool, credentials: Credentials | None, fetch: Fetch
    ) -> None:
        self._host = host
        self._encrypted = encrypted
        self._credentials = credentials
        self._looked = credentials is not None
        self._fetch = fetch
        self._lock = threading.Lock()
        self._challenge = Challenge()
        self._tokens: dict[str, Token] = {}
        # What the registry said that requests of a scope need, for those where it said so.
        self._asked: dict[str, str] = {}

    def header(self, scope: str) -> str:
        """The header's value for a request that needs `scope`; "" where none is known to be needed.

        Raises:
            NetworkError, RegistryError: the token server could not be reached, or refused.
        """
        with self._lock:
            return self._header(scope)

    def renew(self, challenge: str, scope: str, refused: str) -> bool:
        """Take in a 401; True where another try has something new to offer.

        Args:
            challenge: the `WWW-Authenticate` header.
            refused: the `Authorization` that was answered so.

        Raises:
            NetworkError, RegistryError: as `header`, and where no credentials are known.
        """
        with self._lock:
            if refused and (current := self._header(scope)) and current != refused:
                return True  # another thread has renewed it meanwhile
            asked = {one.scheme: one for one in reversed(parse_challenges(challenge))}
            chosen = asked.get("bearer") or asked.get("basic")
            if chosen is None:
                raise RegistryError(f"{self._host} asks for credentials of an unknown kind")
            if chosen.scheme == "basic" and self._known() is None:
                raise RegistryError(
                    f"{self._host} asks for a user and a password, and none are known",
                    f"docker login {self._host}, or set SLIPWAY_REGISTRY_USERNAME and "
                    "SLIPWAY_REGISTRY_PASSWORD",
                )
            self._challenge = chosen
            self._asked[scope] = chosen.scope
            self._tokens = {
                held: token
                for held, token in self._tokens.items()
                if f"Bearer {token.value}" != refused
            }
            return self._header(scope) != refused

    def redact(self, text: str) -> str:
        """`text` without our secrets, should the registry have sent one back."""
        secrets = [token.value for token in list(self._tokens.values())]
        if self._credentials is not None:
            secrets += [self._credentials.basic.removeprefix("Basic "), self._credentials.password]
        for secret in secrets:
            if len(secret) >= 4:
                text = text.replace(secret, "***")
        return text

    def _header(self, scope: str) -> str:
        if self._challenge.scheme == "basic":
            credentials = self._known()
            return credentials.basic if credentials else ""
        if self._challenge.scheme != "bearer":
            return ""
        now = time.monotonic()
        for held, token in self._tokens.items():
            if token.until > now and covers(held, scope):
                return f"Bearer {token.value}"
        token = self._fetch_token(scope)
        self._tokens[scope] = token
        return f"Bearer {token.value}"

    def _known(self) -> Credentials | None:
        if not self._looked:
            self._credentials = find_credentials(self._host)
            self._looked = True
        return self._credentials

    def _fetch_token(self, scope: str) -> Token:
        asked, credentials = self._challenge, self._known()
        parts = urlsplit(asked.realm)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise RegistryError(f"{self._host} names no token server: {asked.realm[:80]!r}")
        if credentials and self._encrypted and parts.scheme != "https":
            raise RegistryError(
                f"{self._host} wants credentials sent in the clear to {parts.netloc}",
                "its token realm must be https (Gitea: ROOT_URL)",
            )
        scopes = scope.split()
        scopes += [
            one
            for one in self._asked.get(scope, "").split()
            if "*" not in one and not covers(scope, one)
        ]
        query = [("service", asked.service)] if asked.service else []
        if credentials and credentials.identity_token:
            form = [("grant_type", "refresh_token"), ("refresh_token", credentials.identity_token)]
            form += [*query, ("client_id", "slipway"), ("scope", " ".join(scopes))]
            headers = {"Content-Type": "application/x-www-form-urlencoded"}
            body = self._fetch("POST", asked.realm, headers, urlencode(form).encode())
        else:
            query += [("scope", one) for one in scopes]
            url = f"{asked.realm}{'&' if parts.query else '?'}{urlencode(query)}"
            headers = {"Authorization": credentials.basic} if credentials else {}
            body = self._fetch("GET", url, headers, None)
        try:
            return parse_token(body)
        except ValueError as error:
            raise RegistryError(
                f"the token server {parts.netloc} gave no usable token: {error}"
            ) from error
