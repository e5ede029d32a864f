"""Connections to the hosts of one registry: kept alive, encrypted where asked, bounded in patience.

Nothing here knows retries, credentials or registries; a failure is an `OSError` or an
`HTTPException` of `http.client`.
"""

from __future__ import annotations

import http.client
import os
import re
import select
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from slipway.errors import IntegrityError, SlipwayError, StorageError

if TYPE_CHECKING:
    import ssl

CONNECT_SECONDS = 10.0
# Seconds without a byte after which an exchange counts as dead.
STEP_SECONDS = 60.0
# Bytes per second that a registry is trusted to take in while it checks a blob before it answers.
_DIGESTING = 20e6
_BLOCK = 256 << 10
_LOOPBACK = re.compile(r"127(?:\.\d{1,3}){3}")


@dataclass(frozen=True)
class Body:
    """What a request carries.

    Attributes:
        open: gives a fresh stream at the first byte to send, since an attempt may be repeated.
        size: bytes to send.
        sent: called with the bytes sent so far, after each block; may raise to give up.
    """

    open: Callable[[], BinaryIO]
    size: int
    sent: Callable[[int], None] | None = None


def is_loopback(netloc: str) -> bool:
    """Whether `host[:port]` is this machine."""
    name = netloc.rsplit(":", 1)[0] if netloc.count(":") == 1 or "]:" in netloc else netloc
    return name in ("localhost", "[::1]", "::1") or _LOOPBACK.fullmatch(name) is not None


def _proxy(netloc: str) -> tuple[str, dict[str, str]]:
    """The proxy that `HTTPS_PROXY` and `NO_PROXY` name for a host, and what it is to be told.

    Gives "" for none; loopback has none. Plain HTTP, which is for hosts nearby, never has.
    """
    names = ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
    if is_loopback(netloc) or not any(os.environ.get(name) for name in names):
        return "", {}
    from base64 import b64encode
    from urllib.parse import unquote, urlsplit
    from urllib.request import getproxies_environment, proxy_bypass

    proxies = getproxies_environment()
    chosen = proxies.get("https") or proxies.get("all") or ""
    parts = urlsplit(chosen if "://" in chosen else f"http://{chosen}")
    if not parts.hostname or proxy_bypass(netloc, proxies):
        return "", {}
    headers = {}
    if parts.username is not None:
        user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Proxy-Authorization"] = f"Basic {b64encode(user.encode()).decode()}"
    return parts.netloc.rpartition("@")[2], headers


class Exchange:
    """An answer whose body is still to be read. Read to its end, the connection is used again."""

    def __init__(
        self,
        pool: Pool,
        origin: tuple[str, str],
        connection: http.client.HTTPConnection,
        method: str,
        *,
        reusable: bool,
    ) -> None:
        self._pool, self._origin = pool, origin
        self._connection = connection
        self._response = response = connection.getresponse()
        self._reusable = reusable
        self.status = response.status
        # Else Content-Length says what a body would have.
        self.has_body = method != "HEAD" and response.status not in (204, 304)
        self.headers: dict[str, str] = {}
        for name, value in response.getheaders():
            key = name.lower()
            self.headers[key] = f"{self.headers[key]}, {value}" if key in self.headers else value

    def read(self, size: int) -> bytes:
        """At most `size` bytes of the body; b"" at its end, or where the connection ended."""
        return self._response.read(size)

    def readinto(self, buffer: memoryview) -> int:
        """Fill `buffer` from the body; 0 at its end, or where the connection ended."""
        return self._response.readinto(buffer)

    def close(self) -> None:
        """Give the connection back; one with something left on it is closed."""
        done = self._response.isclosed()
        self._response.close()
        if done and self._reusable and self._connection.sock is not None:
            self._pool.give_back(self._origin, self._connection)
        else:
            self._connection.close()


class Pool:
    """Idle connections by origin (scheme, host[:port]), shared by threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[tuple[str, str], list[http.client.HTTPConnection]] = {}
        self._tls: ssl.SSLContext | None = None

    def exchange(
        self,
        origin: tuple[str, str],
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: Body | None,
    ) -> Exchange:
        """Send a request, and give back its answer up to the body.

        Raises:
            OSError, http.client.HTTPException: no answer came.
            http.client.InvalidURL: `path` cannot stand in a request.
            StorageError, IntegrityError: the body could not be read, or is shorter than it says.
        """
        connection, kept = self._take(origin)
        try:
            try:
                return self._exchange(origin, connection, method, path, headers, body)
            except (OSError, http.client.HTTPException):
                # The other side may have closed a kept connection in this very moment.
                if not kept or body is not None:
                    raise
                connection.close()
                connection = self._connect(origin)
                return self._exchange(origin, connection, method, path, headers, body)
        except BaseException:
            connection.close()
            raise

    def warm(self, origin: tuple[str, str], count: int) -> None:
        """Open connections until `count` are idle.

        Raises:
            OSError: one could not be opened.
        """
        with self._lock:
            missing = count - len(self._idle.get(origin, ()))
        for _ in range(missing):
            self.give_back(origin, self._connect(origin))

    def give_back(self, origin: tuple[str, str], connection: http.client.HTTPConnection) -> None:
        """Keep a connection on which nothing is under way."""
        with self._lock:
            self._idle.setdefault(origin, []).append(connection)

    def close(self) -> None:
        """Close what is idle."""
        with self._lock:
            idle, self._idle = self._idle, {}
        for connections in idle.values():
            for connection in connections:
                connection.close()

    def _take(self, origin: tuple[str, str]) -> tuple[http.client.HTTPConnection, bool]:
        while True:
            with self._lock:
                idle = self._idle.get(origin)
                connection = idle.pop() if idle else None
            if connection is None:
                return self._connect(origin), False
            # On an idle connection something to read is its end.
            if connection.sock is not None and not _readable(connection.sock):
                return connection, True
            connection.close()

    def _connect(self, origin: tuple[str, str]) -> http.client.HTTPConnection:
        scheme, netloc = origin
        connection: http.client.HTTPConnection
        if scheme == "https":
            tls = self._tls_context()
            proxy, headers = _proxy(netloc)
            connection = http.client.HTTPSConnection(
                proxy or netloc, timeout=CONNECT_SECONDS, context=tls
            )
            if proxy:
                connection.set_tunnel(netloc, headers=headers)
        else:
            connection = http.client.HTTPConnection(netloc, timeout=CONNECT_SECONDS)
        try:
            connection.connect()
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except BaseException:
            connection.close()
            raise
        return connection

    def _tls_context(self) -> ssl.SSLContext:
        """The system's authorities, or those of `SSL_CERT_FILE`; read once, it takes a while."""
        with self._lock:
            if self._tls is None:
                import ssl

                self._tls = ssl.create_default_context()
            return self._tls

    def _exchange(
        self,
        origin: tuple[str, str],
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: Body | None,
    ) -> Exchange:
        connection.sock.settimeout(STEP_SECONDS)
        connection.putrequest(method, path, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.putheader("User-Agent", "slipway")
        if body is not None or method in ("POST", "PUT", "PATCH"):
            connection.putheader("Content-Length", str(body.size if body else 0))
        connection.endheaders()
        whole = body is None or _send(connection, body, early=origin[0] == "http")
        if body is not None and connection.sock is not None:
            connection.sock.settimeout(STEP_SECONDS + body.size / _DIGESTING)
        return Exchange(self, origin, connection, method, reusable=whole)


def _send(connection: http.client.HTTPConnection, body: Body, *, early: bool) -> bool:
    """Send a body; False where the other side answered, or closed, before it had all of it.

    A proxy that refuses a large body answers 413 at once. Over TLS what can be read may be a
    session ticket, so there the refusal shows only when sending fails.
    """
    done = 0
    with _reading(body) as stream:
        while done < body.size:
            block = _read(stream, min(_BLOCK, body.size - done))
            if not block:
                raise IntegrityError(f"a blob ends after {done} of {body.size} bytes to send")
            try:
                connection.sock.sendall(block)
            except (BrokenPipeError, ConnectionResetError):
                # An answer that came before the end may still lie in the socket.
                if _readable(connection.sock):
                    return False
                raise
            done += len(block)
            if body.sent is not None:
                body.sent(done)
            if early and done < body.size and _readable(connection.sock):
                return False
    return True


def _reading(body: Body) -> BinaryIO:
    try:
        return body.open()
    except OSError as error:
        raise StorageError(f"a blob to send cannot be opened: {error}") from error


def _read(stream: BinaryIO, size: int) -> bytes:
    try:
        return stream.read(size)
    except SlipwayError:
        raise
    except OSError as error:
        raise StorageError(f"a blob to send cannot be read: {error}") from error


def _readable(sock: socket.socket) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))
