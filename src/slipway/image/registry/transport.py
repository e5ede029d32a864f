"""Requests to one registry: credentials, redirects, bounded retries, errors that name the place.

A registry, a proxy or a network that fails is normal: connection errors, 408, 429 and 5xx are tried
again, within the bounds of `retry.py`; everything else is an answer.
"""

from __future__ import annotations

import http.client
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar
from urllib.parse import urljoin, urlsplit

from slipway.errors import RegistryError
from slipway.image.registry.auth import Credentials
from slipway.image.registry.connections import Body, Exchange, Pool, is_loopback
from slipway.image.registry.failures import RefusedError, refusal, unreachable
from slipway.image.registry.retry import RETRIED, Backoff, Retries
from slipway.image.registry.tokens import Authorizer

__all__ = ["BODY_LIMIT", "Body", "Exchange", "Response", "Transport", "is_loopback"]

BODY_LIMIT = 4 << 20  # bytes of an answer that is read whole (the spec's limit for manifests)
_ANSWER_SECONDS = 120.0  # for such an answer to arrive, however little comes at a time
_API_HOSTS = {"docker.io": "registry-1.docker.io"}
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MOST_REDIRECTS = 5
_URL = re.compile(r"[!-~]+")
_PORTS = {"http": ":80", "https": ":443"}

_T = TypeVar("_T")


@dataclass(frozen=True)
class Response:
    """A complete answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def header(self, name: str) -> str:
        """A header's value, or ""."""
        return self.headers.get(name, "")


class Transport:
    """What sends requests to one registry, shared by threads.

    Args:
        host: `host[:port]` as it stands in image names.
        insecure: speak plain HTTP; None for loopback hosts and those in
            `SLIPWAY_INSECURE_REGISTRIES` (comma separated).
        credentials: None to look where Docker keeps them.
        retries: bounds of trying again.
    """

    def __init__(
        self,
        host: str,
        *,
        insecure: bool | None = None,
        credentials: Credentials | None = None,
        retries: Retries | None = None,
    ) -> None:
        self.host = host
        named = {
            one.strip() for one in os.environ.get("SLIPWAY_INSECURE_REGISTRIES", "").split(",")
        }
        plain = insecure if insecure is not None else (is_loopback(host) or host in named)
        self.scheme = "http" if plain else "https"
        self.retries = retries or Retries()
        # Bytes that one upload request may carry, once a proxy has refused more; 0 while unknown.
        self.upload_limit = 0
        self.requests = 0
        self._root = f"{self.scheme}://{_API_HOSTS.get(host, host)}/"
        self._lock = threading.Lock()
        self._pool = Pool()
        self._authorizer = Authorizer(host, not plain, credentials, self._fetch)

    def request(
        self,
        method: str,
        target: str,
        *,
        scope: str,
        headers: Mapping[str, str] | None = None,
        body: Body | None = None,
        accept: Collection[int] = (200,),
        tries: int = 0,
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

        return self._converse(
            method, self.locate(target), scope, headers or {}, body, accept, tries, _whole
        )

    def stream(self, target: str, *, scope: str, headers: Mapping[str, str]) -> Exchange:
        """A GET whose body is still to be read, answered with 200 or 206.

        Raises: as `request`.
        """
        return self._converse(
            "GET", self.locate(target), scope, headers, None, (200, 206), 0, lambda found: found
        )

    def locate(self, target: str, base: str = "") -> str:
        """The absolute URL of a path or `Location`, which must lead to this registry.

        A `Location` with the other scheme, as a proxy that ends TLS leaves it, is brought to ours.

        Raises:
            RegistryError: it leads elsewhere, or is no address.
        """
        if not _URL.fullmatch(target):
            raise RegistryError(f"{self.host} sent an address that is none: {target[:80]!r}")
        url = urljoin(base or self._root, target)
        theirs, ours = _origin(url), _origin(self._root)
        if _bare(theirs[1]) != _bare(ours[1]) and theirs[1] != self.host:
            raise RegistryError(
                f"{self.host} sent an address at another host, {theirs[1]}",
                "check the registry's public URL (Gitea: ROOT_URL; docker-registry: http.host)",
            )
        parts = urlsplit(url)
        path = f"{parts.path}?{parts.query}" if parts.query else parts.path
        return self._root + path.lstrip("/")

    def warm(self, count: int) -> None:
        """Open connections ahead of their use, so that no later request waits for one.

        Raises:
            NetworkError: the registry cannot be reached.
        """
        try:
            self._pool.warm(_origin(self._root), count)
        except OSError as error:
            raise unreachable("CONNECT", self._root, error, 1, 0.0) from error

    def backoff(self, tries: int = 0) -> Backoff:
        """The attempts of one request, or of one upload."""
        return Backoff(replace(self.retries, attempts=tries) if tries else self.retries)

    def close(self) -> None:
        """Close the kept connections."""
        self._pool.close()

    def _converse(
        self,
        method: str,
        url: str,
        scope: str,
        headers: Mapping[str, str],
        body: Body | None,
        accept: Collection[int],
        tries: int,
        finish: Callable[[Exchange], _T],
    ) -> _T:
        """Send until there is an answer in `accept`, through 401, redirects and failures.

        Our credentials go to this registry's own origin alone: an answer that leads elsewhere is
        followed without them.
        """
        backoff = self.backoff(tries)
        renewals = redirects = 0
        while True:
            ours = _origin(url) == _origin(self._root)
            authorization = self._authorizer.header(scope) if scope and ours else ""
            sent = {**headers, "Authorization": authorization} if authorization else headers
            started = time.monotonic()
            try:
                exchange = self._exchange(method, url, sent, body)
                if exchange.status in accept:
                    return finish(exchange)
                answer = _whole(exchange)
            except http.client.InvalidURL as error:
                raise RegistryError(f"{self.host} sent an address that is none") from error
            except (OSError, http.client.HTTPException) as error:
                if _lasting(error) or not backoff.wait():
                    seconds = time.monotonic() - started
                    raise unreachable(method, url, error, backoff.attempts, seconds) from error
                continue
            if answer.status == 401 and scope and ours and renewals < 2:
                renewals += 1
                if self._authorizer.renew(answer.header("www-authenticate"), scope, authorization):
                    continue
            elif answer.status in _REDIRECTS and method in ("GET", "HEAD"):
                redirects += 1
                url = self._follow(url, answer, redirects)
                continue
            elif answer.status in RETRIED and backoff.wait(answer.header("retry-after")):
                continue
            raise self._refusal(method, url, answer)

    def _exchange(
        self, method: str, url: str, headers: Mapping[str, str], body: Body | None
    ) -> Exchange:
        with self._lock:
            self.requests += 1
        parts = urlsplit(url)
        path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
        return self._pool.exchange(_origin(url), method, path, headers, body)

    def _follow(self, url: str, answer: Response, redirects: int) -> str:
        location = answer.header("location")
        target = urljoin(url, location) if _URL.fullmatch(location) else ""
        if redirects > _MOST_REDIRECTS:
            raise RegistryError(
                f"{self.host} redirects in a circle, lastly to {location.partition('?')[0][:80]!r}"
            )
        if urlsplit(target).scheme not in ("http", "https") or not urlsplit(target).netloc:
            raise RegistryError(
                f"{self.host} redirects to what is no address: {location.partition('?')[0][:80]!r}"
            )
        return target

    def _refusal(self, method: str, url: str, answer: Response) -> RefusedError:
        host = self.host if _origin(url) == _origin(self._root) else urlsplit(url).netloc
        # Before it is cut to what is shown, so that no part of a secret is left.
        said = self._authorizer.redact(answer.body.decode(errors="replace")).encode()
        return refusal(host, method, url, answer.status, said, answer.header("retry-after"))

    def _fetch(
        self, method: str, url: str, headers: Mapping[str, str], data: bytes | None
    ) -> bytes:
        """What the token server answers; it gets the headers given and nothing else of ours."""
        import io

        body = None if data is None else Body(lambda: io.BytesIO(data), len(data))
        return self._converse(method, url, "", headers, body, (200,), 0, _whole).body


def _whole(exchange: Exchange) -> Response:
    """Read an answer's body, within bounds."""
    data = bytearray()
    deadline = time.monotonic() + _ANSWER_SECONDS
    try:
        while block := exchange.read(min(64 << 10, BODY_LIMIT + 1 - len(data))):
            data += block
            if time.monotonic() > deadline:
                raise TimeoutError(f"the answer did not end within {_ANSWER_SECONDS:.0f} s")
        if len(data) > BODY_LIMIT:
            raise RegistryError(f"a registry's answer is longer than {BODY_LIMIT >> 20} MiB")
        said = exchange.headers.get("content-length", "")
        # Of an error any part serves, and some servers miscount it (Go's 416).
        if (
            exchange.has_body
            and exchange.status < 400
            and said.isdecimal()
            and int(said[:12]) != len(data)
        ):
            raise http.client.IncompleteRead(bytes(data))
    finally:
        exchange.close()
    return Response(exchange.status, exchange.headers, bytes(data))


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc.rpartition("@")[2]


def _bare(netloc: str) -> str:
    for port in _PORTS.values():
        netloc = netloc.removesuffix(port)
    return netloc.lower()


def _lasting(error: Exception) -> bool:
    """Whether trying again cannot help: no such host, or a certificate that does not hold."""
    if isinstance(error, socket.gaierror):
        return error.errno != socket.EAI_AGAIN
    # `ssl` is imported with the first encrypted connection only.
    return type(error).__name__ in ("SSLCertVerificationError", "SSLError")
