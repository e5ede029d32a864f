"""Registries to test against, and the faults of networks and proxies in front of them.

`memory_registry` is one in this process, faithful to the OCI distribution spec where tests look;
`fault_proxy` stands before a real one. Both take `Fault`s, each of which spoils some exchanges.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, TypeVar
from urllib.parse import parse_qs, urlsplit

_BLOCK = 64 << 10
Server = TypeVar("Server", bound=ThreadingHTTPServer)


@dataclass
class Fault:
    """What happens to the next `times` requests that match.

    Attributes:
        method, path: patterns that must match whole; the path comes without its query.
        over: matches only where the request's body is longer than this many bytes.
        after: matches only after this many other matches.
        status, headers, body: answer so, in the registry's stead; `early`: before the request's
            body was read, and then close, as a proxy with a limit does.
        cut: take this many bytes of the request's body, then reset the connection.
        lose_answer: let the registry do it, then reset instead of telling.
        late_status: let the registry do it, then answer this.
        truncate: send this many bytes of the answer's body, then close.
        corrupt: change a byte of the answer's body. `corrupt_request`: of the request's.
        pause: seconds between two blocks of the answer's body.
    """

    method: str = ".*"
    path: str = ".*"
    times: int = 1
    over: int = -1
    after: int = 0
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    early: bool = False
    cut: int | None = None
    lose_answer: bool = False
    late_status: int = 0
    truncate: int | None = None
    corrupt: bool = False
    corrupt_request: bool = False
    pause: float = 0.0
    seen: int = 0


@dataclass
class Seen:
    """A request as it arrived."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    length: int
    started: float
    ended: float = 0.0


@dataclass
class Answer:
    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


class CutError(Exception):
    """The connection is to be reset."""


class FaultyServer(ThreadingHTTPServer):
    """A server whose exchanges are noted, and spoiled by `faults`."""

    daemon_threads = True

    def __init__(self, handler: type[Handler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.faults: list[Fault] = []
        self.seen: list[Seen] = []
        self.lock = threading.Lock()
        self.connections = 0
        self.delay = 0.0  # seconds before each answer
        self.idle = threading.Condition(self.lock)
        self.active = 0

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    def fault(self, **members: Any) -> Fault:
        """Add a fault."""
        self.faults.append(Fault(**members))
        return self.faults[-1]

    def methods(self) -> list[str]:
        """The methods of all requests so far, in their order."""
        return [seen.method for seen in self.seen]

    def depth(self) -> int:
        """How many of the requests so far came one after the other: the longest such chain.

        Exact where `delay` is far longer than the time between two requests that belong together.
        """
        count, end = 0, 0.0
        for seen in sorted(self.seen, key=lambda one: one.ended):
            if seen.started >= end:
                count, end = count + 1, seen.ended
        return count

    def settle(self) -> None:
        """Return once nothing is under way, not even for clients that have gone."""
        with self.idle:
            assert self.idle.wait_for(lambda: not self.active, timeout=30)

    def get_request(self) -> Any:
        self.connections += 1
        return super().get_request()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is what is tested."""


class Handler(BaseHTTPRequestHandler):
    """Applies faults around `answer`, which subclasses give."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: FaultyServer

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def answer(self) -> Answer:
        raise NotImplementedError

    def blocks(self) -> Iterator[bytes]:
        """The request's body as it arrives; ends in a reset where the fault says so."""
        while self.left > 0:
            size = min(_BLOCK, self.left)
            if self.fault.cut is not None:
                size = min(size, self.fault.cut - self.taken)
                if size <= 0:
                    raise CutError
            block = self.rfile.read(size)
            if not block:
                raise CutError
            self.left -= len(block)
            self.taken += len(block)
            if self.fault.corrupt_request and self.taken == len(block):
                block = bytes([block[0] ^ 1]) + block[1:]
            yield block
        if self.fault.cut is not None and self.taken >= self.fault.cut:
            raise CutError

    def _serve(self) -> None:
        self.url = urlsplit(self.path)
        self.left = int(self.headers.get("Content-Length") or 0)
        self.taken = 0
        with self.server.lock:
            headers = {name.lower(): value for name, value in self.headers.items()}
            seen = Seen(
                self.command, self.url.path, self.url.query, headers, self.left, time.monotonic()
            )
            self.server.seen.append(seen)
            self.server.active += 1
            self.fault = self._choose()
        try:
            self._spoil(self.fault)
        except CutError:
            self._reset()
        finally:
            with self.server.idle:
                seen.ended = time.monotonic()
                self.server.active -= 1
                self.server.idle.notify_all()

    def _spoil(self, fault: Fault) -> None:
        """Answer, in the way that the fault has it."""
        if self.server.delay:
            time.sleep(self.server.delay)
        if fault.status:
            if fault.early:
                self.close_connection = True
            else:
                for _ in self.blocks():
                    pass
            self._send(Answer(fault.status, dict(fault.headers), fault.body))
            return
        answer = self.answer()
        for _ in self.blocks():
            pass
        if fault.lose_answer:
            raise CutError
        if fault.late_status:
            answer = Answer(fault.late_status)
        self._send(answer)

    do_GET = do_HEAD = do_PUT = do_POST = do_PATCH = do_DELETE = _serve

    def _choose(self) -> Fault:
        for fault in self.server.faults:
            if (
                re.fullmatch(fault.method, self.command)
                and re.fullmatch(fault.path, self.url.path)
                and self.left > fault.over
            ):
                fault.seen += 1
                if fault.after < fault.seen <= fault.after + fault.times:
                    return fault
        return Fault()

    def _send(self, answer: Answer) -> None:
        fault, body = self.fault, answer.body
        if fault.corrupt and body:
            body = body[:-1] + bytes([body[-1] ^ 1])
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if not any(name.lower() == "content-length" for name in answer.headers):
            self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault.truncate is not None:
            self.wfile.write(body[: fault.truncate])
            self.wfile.flush()
            self.close_connection = True
            return
        for start in range(0, len(body), _BLOCK):
            self.wfile.write(body[start : start + _BLOCK])
            if fault.pause:
                time.sleep(fault.pause)

    def _reset(self) -> None:
        """End the connection by RST, as a crashed or impatient proxy does."""
        self.close_connection = True
        linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.rfile.close()
        self.connection.close()


class MemoryRegistry(FaultyServer):
    """The spec's registry, in memory.

    Attributes:
        mounts, resumes, has_referrers: whether it does what it need not.
        challenge: what every request without `authorization` is answered with; "" for none.
    """

    def __init__(self) -> None:
        super().__init__(_MemoryHandler)
        self.blobs: dict[tuple[str, str], bytes] = {}
        self.manifests: dict[tuple[str, str], tuple[str, bytes]] = {}
        self.tags: dict[tuple[str, str], str] = {}
        self.uploads: dict[str, bytearray] = {}
        self.mounts = self.resumes = True
        self.has_referrers = False
        self.challenge = ""
        self.authorizations: set[str] = set()
        self.page = 1000

    def put_blob(self, repository: str, data: bytes) -> str:
        """Place a blob."""
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        self.blobs[repository, digest] = data
        return digest


class _MemoryHandler(Handler):
    server: MemoryRegistry
    _routes: ClassVar = [
        (re.compile(r"/v2/(.+)/manifests/([^/]+)"), "manifest"),
        (re.compile(r"/v2/(.+)/blobs/uploads/([^/]*)"), "upload"),
        (re.compile(r"/v2/(.+)/blobs/([^/]+)"), "blob"),
        (re.compile(r"/v2/(.+)/tags/(list)"), "list_tags"),
        (re.compile(r"/v2/(.+)/referrers/([^/]+)"), "list_referrers"),
    ]

    def answer(self) -> Answer:
        if self.server.challenge:
            given = self.headers.get("Authorization", "")
            if given not in self.server.authorizations:
                return Answer(401, {"WWW-Authenticate": self.server.challenge})
        self.query = {name: values[0] for name, values in parse_qs(self.url.query).items()}
        for pattern, name in self._routes:
            if found := pattern.fullmatch(self.url.path):
                return getattr(self, name)(*found.groups())  # type: ignore[no-any-return]
        return _error(404, "UNSUPPORTED")

    def manifest(self, name: str, identifier: str) -> Answer:
        digest = self.server.tags.get((name, identifier), identifier)
        if self.command == "PUT":
            data = b"".join(self.blocks())
            digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
            value = json.loads(data)
            for blob in [*value.get("layers", []), *filter(None, [value.get("config")])]:
                if (name, blob["digest"]) not in self.server.blobs:
                    return _error(404, "MANIFEST_BLOB_UNKNOWN")
            self.server.manifests[name, digest] = (self.headers["Content-Type"], data)
            if ":" not in identifier:
                self.server.tags[name, identifier] = digest
            headers = {"Docker-Content-Digest": digest}
            if "subject" in value and self.server.has_referrers:
                headers["OCI-Subject"] = value["subject"]["digest"]
            return Answer(201, headers)
        found = self.server.manifests.get((name, digest))
        if found is None:
            return _error(404, "MANIFEST_UNKNOWN")
        if self.command == "DELETE":
            del self.server.manifests[name, digest]
            return Answer(202)
        return Answer(200, {"Content-Type": found[0], "Docker-Content-Digest": digest}, found[1])

    def blob(self, name: str, digest: str) -> Answer:
        data = self.server.blobs.get((name, digest))
        if data is None:
            return _error(404, "BLOB_UNKNOWN")
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if wanted and self.server.resumes:
            start = int(wanted[1])
            span = f"bytes {start}-{len(data) - 1}/{len(data)}"
            return Answer(206, {"Content-Range": span}, data[start:])
        return Answer(200, {}, data)

    def upload(self, name: str, session: str) -> Answer:
        server = self.server
        if self.command == "POST":
            source = (self.query.get("from", ""), self.query.get("mount", ""))
            if server.mounts and source in server.blobs:
                server.blobs[name, source[1]] = server.blobs[source]
                return Answer(201)
            session = f"u{len(server.uploads)}"
            server.uploads[session] = bytearray()
            return Answer(202, self._where(name, session))
        held = server.uploads.get(session)
        if held is None:
            return _error(404, "BLOB_UPLOAD_UNKNOWN")
        if self.command == "GET":
            if not server.resumes:
                return _error(404, "BLOB_UPLOAD_UNKNOWN")
            return Answer(204, self._where(name, session))
        span = re.fullmatch(r"(\d+)-(\d+)", self.headers.get("Content-Range", ""))
        if (int(span[1]) if span else 0) != len(held) and self.left:
            return _error(416, "RANGE_INVALID")
        for block in self.blocks():
            held += block
        if self.command == "PATCH":
            return Answer(202, self._where(name, session))
        del server.uploads[session]
        digest = f"sha256:{hashlib.sha256(held).hexdigest()}"
        if digest != self.query["digest"]:
            return _error(400, "DIGEST_INVALID")
        server.blobs[name, digest] = bytes(held)
        return Answer(201, {"Docker-Content-Digest": digest})

    def _where(self, name: str, session: str) -> dict[str, str]:
        end = max(len(self.server.uploads[session]) - 1, 0)
        return {"Location": f"/v2/{name}/blobs/uploads/{session}?s=1", "Range": f"0-{end}"}

    def list_tags(self, name: str, _: str) -> Answer:
        tags = sorted(tag for repository, tag in self.server.tags if repository == name)
        if not tags:
            return _error(404, "NAME_UNKNOWN")
        tags = [tag for tag in tags if tag > self.query.get("last", "")]
        headers = {}
        if len(tags) > self.server.page:
            tags = tags[: self.server.page]
            headers["Link"] = f'</v2/{name}/tags/list?last={tags[-1]}>; rel="next"'
        return Answer(200, headers, json.dumps({"name": name, "tags": tags}).encode())

    def list_referrers(self, name: str, digest: str) -> Answer:
        if not self.server.has_referrers:
            return Answer(404, {}, b"404 page not found")
        found = []
        for (repository, one), (kind, data) in self.server.manifests.items():
            value = json.loads(data)
            if repository == name and value.get("subject", {}).get("digest") == digest:
                found.append(
                    {
                        "mediaType": kind,
                        "digest": one,
                        "size": len(data),
                        "artifactType": value.get("artifactType", ""),
                    }
                )
        return Answer(200, {}, json.dumps({"schemaVersion": 2, "manifests": found}).encode())


class FaultProxy(FaultyServer):
    """Passes everything to `upstream` (`host:port`), but for its faults."""

    def __init__(self, upstream: str) -> None:
        super().__init__(_ProxyHandler)
        self.upstream = upstream


class _ProxyHandler(Handler):
    server: FaultProxy

    def answer(self) -> Answer:
        connection = http.client.HTTPConnection(self.server.upstream, timeout=60)
        try:
            connection.putrequest(
                self.command, self.path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in self.headers.items():
                connection.putheader(name, value)
            connection.endheaders()
            for block in self.blocks():
                connection.send(block)
            response = connection.getresponse()
            hop = {"connection", "transfer-encoding", "keep-alive"}
            headers = {k: v for k, v in response.getheaders() if k.lower() not in hop}
            return Answer(response.status, headers, response.read())
        finally:
            connection.close()


def _error(status: int, code: str) -> Answer:
    body = json.dumps({"errors": [{"code": code, "message": code.lower()}]}).encode()
    return Answer(status, {"Content-Type": "application/json"}, body)


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    """Run a server while the block runs."""
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
