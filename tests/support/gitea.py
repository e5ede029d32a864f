"""Gitea over HTTP as workflows see it: release pages and packages in memory, a real registry."""

from __future__ import annotations

import http.client
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

TOKEN = "release-token-of-the-test"


class Gitea(ThreadingHTTPServer):
    """Releases of `team/tiny`; `fail_uploads` makes that many uploads fail with 500.

    Args:
        registry: `host:port` of the registry that answers below `/v2/`, "" for none.
    """

    def __init__(self, registry: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.registry = registry
        self.basic = ""
        self.packages: dict[str, bytes] = {}
        self.releases: list[dict[str, Any]] = []
        self.files: dict[str, bytes] = {}
        self.fail_uploads = 0
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Gitea

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self, status: int, value: object = None) -> None:
        body = b"" if value is None else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _handle(self) -> None:
        if self.path.startswith("/v2/") and self.server.registry:
            self._forward()
            return
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        if url.path.startswith("/api/packages/"):
            self._package(url.path, body)
            return
        path = url.path.removeprefix("/api/v1/repos/team/tiny")
        if self.headers.get("Authorization") != f"token {TOKEN}":
            self._answer(401, {"message": "token is required"})
            return
        with self.server.lock:
            self._route(path, {k: v[0] for k, v in parse_qs(url.query).items()}, body)

    def _forward(self) -> None:
        """The registry's own answer; it sees the Host that was asked for, and names it in turn."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        connection = http.client.HTTPConnection(self.server.registry, timeout=20)
        connection.request(self.command, self.path, body or None, dict(self.headers))
        answer = connection.getresponse()
        data = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(data))
        self.send_header("Content-Length", length or "0")
        self.end_headers()
        self.wfile.write(data)
        connection.close()

    def _package(self, path: str, body: bytes) -> None:
        if self.headers.get("Authorization") != self.server.basic:
            self._answer(401)
        elif path in self.server.packages:
            self._answer(409, {"message": "package file already exists"})
        else:
            self.server.packages[path] = body
            self._answer(201)

    def _route(self, path: str, query: dict[str, str], body: bytes) -> None:
        releases = self.server.releases
        if path == "/releases" and self.command == "GET":
            self._answer(200, releases if query.get("page", "1") == "1" else [])
        elif path == "/releases" and self.command == "POST":
            release = {**json.loads(body), "id": len(releases) + 1, "assets": []}
            release["html_url"] = f"{self.server.url}/team/tiny/releases/{release['tag_name']}"
            releases.append(release)
            self._answer(201, release)
        elif found := re.fullmatch(r"/releases/(\d+)", path):
            release = releases[int(found[1]) - 1]
            release.update(json.loads(body))
            self._answer(200, release)
        elif found := re.fullmatch(r"/releases/(\d+)/assets", path):
            self._upload(releases[int(found[1]) - 1], query["name"], body)
        elif found := re.fullmatch(r"/releases/(\d+)/assets/(\d+)", path):
            release = releases[int(found[1]) - 1]
            release["assets"] = [one for one in release["assets"] if one["id"] != int(found[2])]
            self._answer(204)
        else:
            self._answer(404, {"message": "not found"})

    def _upload(self, release: dict[str, Any], name: str, body: bytes) -> None:
        if self.server.fail_uploads:
            self.server.fail_uploads -= 1
            self._answer(500, {"message": "disk full"})
            return
        boundary = self.headers["Content-Type"].partition("boundary=")[2].encode()
        content = body.split(b"\r\n\r\n", 1)[1].rsplit(b"\r\n--" + boundary, 1)[0]
        self.server.files[name] = content
        asset = {"id": len(self.server.files), "name": name, "size": len(content)}
        release["assets"].append(asset)
        self._answer(201, asset)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _handle


@contextmanager
def gitea(registry: str = "") -> Iterator[Gitea]:
    """A running server."""
    server = Gitea(registry)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
