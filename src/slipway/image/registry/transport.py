"""Requests to one registry: kept connections, credentials, bounded retries, errors that name the
place.

A registry, a proxy or a network that fails is normal: connection errors, 408, 429 and 5xx are tried
again with growing, jittered pauses, `Retry-After` is honoured, everything has a bound.
"""

from __future__ import annotations

import email.utils
import http.client
import ipaddress
import json
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import BinaryIO
from urllib.parse import urlencode, urlsplit

from slipway.errors import NetworkError, RegistryError
from slipway.image.registry.auth import (
    Challenge,
    Credentials,
    Token,
    find_credentials,
    parse_challenge,
    parse_token,
)

ATTEMPTS = 5
TIMEOUT = 60.0  # seconds for one step of a request
LONGEST_PAUSE = 30.0  # seconds between two attempts, whatever Retry-After asks for
BODY_LIMIT = 4 << 20  # bytes of an answer that is read whole (the spec's limit for manifests)
_RETRIED = {408, 429, 500, 502, 503, 504}
_HOSTS = {"docker.io": "registry-1.docker.io"}

Open = Callable[[], BinaryIO]


@dataclass(frozen=True)
class Body:
    """What a request carries: `open` gives a fresh stream, since an attempt may be repeated."""

    open: Open
    size: int


@dataclass(frozen=True)
class Response:
    """A complete answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def header(self, name: str) -> str:
        """A header's value, or ""."""
        return self.headers.get(name.lower(), "")


class DroppedError(NetworkError):
    """The connection ended in the middle of a request, and no attempt is left."""


class RefusedError(RegistryError):
    """The registry refused: `status` is HTTP's, `code` the registry's own, e.g. `BLOB_UNKNOWN`."""

    def __init__(self, what: str, remedy: str, status: int, code: str) -> None:
        super().__init__(what, remedy)
        self.status = status
        self.code = code


def is_loopback(host: str) -> bool:
    """Whether `host[:port]` is this machine."""
    name = host.rsplit(":", 1)[0] if host.count(":") == 1 else host
    name = name.strip("[]")
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class Transport:
    """Connections to one registry, shared by threads.

    Args:
        host: `host[:port]` as it stands in image names.
        insecure: speak plain HTTP; None for loopback hosts and those in
            `SLIPWAY_INSECURE_REGISTRIES` (comma separated).
        credentials: None to look where Docker keeps them.
        attempts: how often a request is tried in all.
    """

    def __init__(
        self,
        host: str,
        *,
        insecure: bool | None = None,
        credentials: Credentials | None = None,
        attempts: int = ATTEMPTS,
    ) -> None:
        self.host = host
        named = os.environ.get("SLIPWAY_INSECURE_REGISTRIES", "").split(",")
        plain = insecure if insecure is not None else (is_loopback(host) or host in named)
        self.scheme = "http" if plain else "https"
        self.requests = 0
        self._credentials = credentials
        self._asked_credentials = credentials is not None
        self._attempts = attempts
        self._lock = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []
        self._challenge: Challenge | None = None
        self._tokens: dict[str, Token] = {}

    @property
    def _netloc(self) -> str:
        return _HOSTS.get(self.host, self.host)

    def request(
        self,
        method: str,
        target: str,
        *,
        scope: str,
        headers: Mapping[str, str] | None = None,
        body: Body | None = None,
        accept: frozenset[int] = frozenset({200}),
        tries: int | None = None,
    ) -> Response:
        """One exchange, answered whole.

        Args:
            target: a path, or an absolute URL of this registry (a `Location`).
            scope: what the token must allow, e.g. `repository:team/keel:pull,push`.
            accept: statuses that are an answer; others raise.
            tries: attempts, where fewer than the transport's own are wanted.

        Raises:
            NetworkError: the registry could not be reached, or dropped every attempt.
            RegistryError: it answered, and the answer is a refusal.
        """
        path = self._path(target)
        attempts = tries or self._attempts
        renewed = False
        attempt = 0
        while True:
            attempt += 1
            try:
                response = self._once(method, path, headers or {}, body, scope)
            except (OSError, http.client.HTTPException) as error:
                if attempt >= attempts or isinstance(error, socket.gaierror):
                    raise self._unreachable(method, path, error, attempt) from error
                self._pause(attempt, "")
                continue
            if response.status == 401 and not renewed:
                renewed = True
                attempt -= 1
                self._authenticate(response.header("www-authenticate"), scope)
                continue
            if response.status in accept:
                return response
            if response.status in _RETRIED and attempt < attempts:
                self._pause(attempt, response.header("retry-after"))
                continue
            raise refusal(self.host, method, path, response)

    def stream(self, target: str, *, scope: str, offset: int = 0) -> tuple[BinaryIO, int]:
        """The body of a GET as a stream from `offset` on, and how many bytes it should have (or
        -1).

        Redirects are followed, without our credentials where they lead to another host.
        """
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        url, authorised = target, True
        for _ in range(5):
            connection, response = self._open_stream(url, headers, scope if authorised else "")
            if response.status in (301, 302, 303, 307, 308):
                location = response.getheader("Location", "")
                response.read()
                connection.close()
                authorised = urlsplit(location).netloc in ("", self._netloc) and authorised
                url = location
                continue
            if response.status not in (200, 206):
                answer = _read(response)
                connection.close()
                raise refusal(self.host, "GET", url, answer)
            if offset and response.status == 200:
                _skip(response, offset)
            length = response.getheader("Content-Length")
            return response, int(length) if length and length.isdigit() else -1
        raise RegistryError(f"GET {target} at {self.host} is redirected in a circle")

    def close(self) -> None:
        """Close the kept connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    # -- one attempt

    def _once(
        self, method: str, path: str, headers: Mapping[str, str], body: Body | None, scope: str
    ) -> Response:
        connection, fresh = self._connection()
        try:
            response = self._send(connection, method, path, headers, body, scope)
        except (OSError, http.client.HTTPException):
            connection.close()
            if fresh:
                raise
            # A kept connection may have been closed by the other side while it was idle.
            connection = self._connect()
            try:
                response = self._send(connection, method, path, headers, body, scope)
            except BaseException:
                connection.close()
                raise
        except BaseException:
            connection.close()
            raise
        if connection.sock is not None:
            with self._lock:
                self._idle.append(connection)
        return response

    def _send(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: Body | None,
        scope: str,
    ) -> Response:
        with self._lock:
            self.requests += 1
        sent = {**headers, "User-Agent": "slipway"}
        if authorization := self._authorization(scope):
            sent["Authorization"] = authorization
        if body is None:
            if method in ("POST", "PUT", "PATCH"):
                sent["Content-Length"] = "0"
            connection.request(method, path, headers=sent)
        else:
            sent["Content-Length"] = str(body.size)
            with body.open() as stream:
                try:
                    connection.request(method, path, body=stream, headers=sent)
                except (BrokenPipeError, ConnectionResetError):
                    # A proxy that refuses a body answers and closes before it has read it.
                    return self._early_answer(connection, method)
        return _read(connection.getresponse())

    @staticmethod
    def _early_answer(connection: http.client.HTTPConnection, method: str) -> Response:
        sock = connection.sock
        if sock is None:
            raise ConnectionResetError("the connection was closed while the body was sent")
        early = http.client.HTTPResponse(sock, method=method)
        early.begin()
        answer = _read(early)
        connection.close()
        return answer

    def _connection(self) -> tuple[http.client.HTTPConnection, bool]:
        with self._lock:
            if self._idle:
                return self._idle.pop(), False
        return self._connect(), True

    def _connect(self, netloc: str = "", scheme: str = "") -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection
        if (scheme or self.scheme) == "https":
            connection = http.client.HTTPSConnection(netloc or self._netloc, timeout=TIMEOUT)
        else:
            connection = http.client.HTTPConnection(netloc or self._netloc, timeout=TIMEOUT)
        connection.connect()
        if connection.sock is not None:
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _open_stream(
        self, url: str, headers: Mapping[str, str], scope: str
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        parts = urlsplit(url)
        path = f"{parts.path}?{parts.query}" if parts.query else parts.path
        for attempt in range(1, self._attempts + 1):
            try:
                connection = self._connect(parts.netloc, parts.scheme)
                sent = dict(headers)
                if scope and (authorization := self._authorization(scope)):
                    sent["Authorization"] = authorization
                with self._lock:
                    self.requests += 1
                connection.request("GET", path, headers=sent)
                response = connection.getresponse()
            except (OSError, http.client.HTTPException) as error:
                if attempt == self._attempts:
                    raise self._unreachable("GET", path, error, attempt) from error
                self._pause(attempt, "")
                continue
            if response.status == 401 and scope and attempt < self._attempts:
                challenge = response.getheader("WWW-Authenticate", "")
                connection.close()
                self._authenticate(challenge, scope)
                continue
            if response.status in _RETRIED and attempt < self._attempts:
                after = response.getheader("Retry-After", "")
                connection.close()
                self._pause(attempt, after)
                continue
            return connection, response
        raise NetworkError(f"GET {path} at {self.host} was refused {self._attempts} times")

    def _path(self, target: str) -> str:
        parts = urlsplit(target)
        if parts.netloc and parts.netloc not in (self._netloc, self.host):
            raise RegistryError(
                f"{self.host} sent an upload to another host, {parts.netloc}",
                "check the registry's public URL (its ROOT_URL or host setting)",
            )
        return f"{parts.path}?{parts.query}" if parts.query else parts.path

    # -- credentials

    def _authorization(self, scope: str) -> str:
        challenge = self._challenge
        if challenge is None:
            return ""
        if challenge.scheme == "basic":
            credentials = self._known_credentials()
            return credentials.basic if credentials else ""
        token = self._tokens.get(scope)
        if token is None or token.until < time.monotonic():
            return ""
        return f"Bearer {token.value}"

    def _known_credentials(self) -> Credentials | None:
        with self._lock:
            if not self._asked_credentials:
                self._credentials = find_credentials(self.host)
                self._asked_credentials = True
            return self._credentials

    def _authenticate(self, header: str, scope: str) -> None:
        challenge = parse_challenge(header)
        credentials = self._known_credentials()
        if challenge.scheme == "basic":
            if credentials is None:
                raise RegistryError(
                    f"{self.host} asks for a user and a password, and none are known",
                    f"docker login {self.host}, or set SLIPWAY_REGISTRY_USERNAME and "
                    "SLIPWAY_REGISTRY_PASSWORD",
                )
        elif challenge.scheme == "bearer":
            self._tokens[scope] = self._fetch_token(challenge, scope, credentials)
        else:
            raise RegistryError(f"{self.host} asks for unknown credentials: {header[:80]!r}")
        self._challenge = challenge

    def _fetch_token(
        self, challenge: Challenge, scope: str, credentials: Credentials | None
    ) -> Token:
        parts = urlsplit(challenge.realm)
        if parts.scheme != "https" and not is_loopback(parts.netloc) and self.scheme == "https":
            raise RegistryError(
                f"{self.host} wants credentials sent in the clear to {parts.netloc}"
            )
        query = [("service", challenge.service)] if challenge.service else []
        query += [("scope", one) for one in scope.split(" ") if one]
        path = f"{parts.path}?{parts.query + '&' if parts.query else ''}{urlencode(query)}"
        headers = {"Authorization": credentials.basic} if credentials else {}
        for attempt in range(1, self._attempts + 1):
            try:
                connection = self._connect(parts.netloc, parts.scheme)
                with self._lock:
                    self.requests += 1
                connection.request("GET", path, headers=headers)
                answer = _read(connection.getresponse())
                connection.close()
            except (OSError, http.client.HTTPException) as error:
                if attempt == self._attempts:
                    raise self._unreachable("GET", challenge.realm, error, attempt) from error
                self._pause(attempt, "")
                continue
            if answer.status in _RETRIED and attempt < self._attempts:
                self._pause(attempt, answer.header("retry-after"))
                continue
            if answer.status != 200:
                raise refusal(parts.netloc, "GET", parts.path, answer)
            try:
                return parse_token(answer.body)
            except ValueError as error:
                raise RegistryError(f"{challenge.realm} gave no usable token: {error}") from error
        raise NetworkError(f"{challenge.realm} gave no token")

    # -- failures

    @staticmethod
    def _pause(attempt: int, retry_after: str) -> None:
        pause = random.uniform(0.5, 1.0) * min(0.25 * 2**attempt, 8.0)
        if retry_after:
            if retry_after.isdigit():
                pause = float(retry_after)
            elif moment := email.utils.parsedate_to_datetime(retry_after):
                pause = max(0.0, moment.timestamp() - time.time())
        time.sleep(min(pause, LONGEST_PAUSE))

    def _unreachable(self, method: str, path: str, error: Exception, attempts: int) -> NetworkError:
        reason = str(error) or type(error).__name__
        times = f" ({attempts} attempts)" if attempts > 1 else ""
        kind = (
            DroppedError
            if isinstance(error, ConnectionError | http.client.HTTPException)
            else (NetworkError)
        )
        return kind(
            f"{method} {self.scheme}://{self.host}{path.split('?')[0]}: {reason}{times}",
            "see that the registry runs and can be reached from here; a connection that ends after "
            "about 60 s points at a proxy's time limit",
        )


def refusal(host: str, method: str, path: str, response: Response) -> RefusedError:
    """The error for an answer that is none of those wanted."""
    code, message = "", ""
    try:
        first = json.loads(response.body)["errors"][0]
        code, message = str(first.get("code", "")), str(first.get("message", ""))
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        message = response.body[:120].decode(errors="replace").strip()
    said = ": ".join(part for part in (code, message) if part)
    remedy = {
        401: f"docker login {host}, or set SLIPWAY_REGISTRY_USERNAME and SLIPWAY_REGISTRY_PASSWORD",
        403: "the account may not write there: a Gitea token needs the package:write scope, and "
        "its user the right to the owner's packages",
        404: "see that registry and repository are spelled as the registry has them",
        413: "a proxy in front of the registry limits the body (nginx: client_max_body_size); "
        "raise that limit",
        429: "the registry limits how often it is asked; try again later",
    }.get(response.status, "")
    return RefusedError(
        f"{method} {host}{urlsplit(path).path} was answered {response.status}"
        f"{f' ({said})' if said else ''}",
        remedy,
        response.status,
        code,
    )


def _read(response: http.client.HTTPResponse) -> Response:
    body = response.read(BODY_LIMIT + 1)
    if len(body) > BODY_LIMIT:
        response.close()
        raise RegistryError(f"the registry's answer is longer than {BODY_LIMIT >> 20} MiB")
    return Response(
        response.status, {name.lower(): value for name, value in response.getheaders()}, body
    )


def _skip(response: http.client.HTTPResponse, count: int) -> None:
    while count > 0:
        chunk = response.read(min(1 << 20, count))
        if not chunk:
            return
        count -= len(chunk)
