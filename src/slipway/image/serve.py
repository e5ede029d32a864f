"""A layout store as a read-only registry on loopback, so that a Docker Engine can pull by digest.

No registry need be installed, no login, no copy: the engine takes the blobs from where they lie.
"""

from __future__ import annotations

import json
import logging
import os
import re
import socketserver
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from slipway.errors import NetworkError, SlipwayError
from slipway.image.descriptor import MANIFEST, MANIFEST_TYPES, Descriptor
from slipway.image.layout import LayoutStore
from slipway.image.model import sha256 as _sha256

log = logging.getLogger(__name__)

_MANIFEST = re.compile(r"/v2/(?P<name>[a-z0-9._/-]+)/manifests/(?P<identifier>[A-Za-z0-9._:-]+)")
_BLOB = re.compile(r"/v2/(?P<name>[a-z0-9._/-]+)/blobs/(?P<digest>sha256:[0-9a-f]{64})")
_TAGS = re.compile(r"/v2/(?P<name>[a-z0-9._/-]+)/tags/list")
_RANGE = re.compile(r"bytes=(\d{1,18})-(\d{0,18})")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MANIFEST_LIMIT = 4 << 20  # bytes; the spec asks nobody to take a longer one


@contextmanager
def serve_layout(root: Path, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """Serve the store at `root` while the block runs; gives `host:port`.

    Any repository name is answered from the one store. Only digests and tags that the store has are
    looked up, so no path leaves it.

    Raises:
        NetworkError: the port is taken.
    """
    store = LayoutStore(root)

    class Handler(_Handler):
        layout = store

    try:
        server = _Server((host, port), Handler)
    except OSError as error:
        raise NetworkError(
            f"cannot serve images on {host}:{port}: {error.strerror}",
            "see who listens there (ss -ltnp), or give another port",
        ) from error
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"{host}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def server_bind(self) -> None:
        """Bind, without asking a name server who we are, as the base class does."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log what went wrong; a client that went away is no error."""
        error = sys.exception()
        if not isinstance(error, ConnectionError | TimeoutError):
            log.warning("an answer to %s failed", client_address, exc_info=error)


class _Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD of the pull part of the distribution spec."""

    layout: LayoutStore
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    # Seconds after which a connection on which nothing happens is closed.
    timeout = 120

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the engine that pulls says enough."""

    def _answer(self, *, body: bool) -> None:
        path, _, query = self.path.partition("?")
        if path in ("/v2", "/v2/"):
            self._send(b"{}", "application/json", body)
        elif found := _MANIFEST.fullmatch(path):
            self._manifest(found["identifier"], body)
        elif found := _BLOB.fullmatch(path):
            self._blob(found["digest"], body)
        elif found := _TAGS.fullmatch(path):
            self._tags(found["name"], parse_qs(query), body)
        else:
            self._refuse("UNSUPPORTED", "only pulling is served here", body)

    def _manifest(self, identifier: str, body: bool) -> None:
        known = self.layout.tags().get(identifier)
        if known is None and _DIGEST.fullmatch(identifier) and self.layout.has(identifier):
            size = self.layout.blob_path(identifier).stat().st_size
            known = Descriptor(MANIFEST, identifier, size)
        if known is None or known.size > _MANIFEST_LIMIT:
            self._refuse("MANIFEST_UNKNOWN", f"there is no {identifier} here", body)
            return
        try:
            with self.layout.open(known) as file:
                data = file.read()
            value = json.loads(data)
            kind = value.get("mediaType", known.media_type)
            shaped = "layers" in value or "manifests" in value
            served = shaped and kind in MANIFEST_TYPES and _sha256(data) == known.digest
        except (SlipwayError, OSError, ValueError, AttributeError) as error:
            log.warning("manifest %s cannot be served: %s", identifier, type(error).__name__)
            served = False
        if not served:
            self._refuse("MANIFEST_UNKNOWN", f"{identifier} is no manifest", body)
            return
        self._send(data, kind, body, {"Docker-Content-Digest": known.digest})

    def _tags(self, name: str, query: dict[str, list[str]], body: bool) -> None:
        """The tags in lexical order, a page of `n` after `last` (spec 1.1, "Listing tags")."""
        tags = sorted(self.layout.tags())
        if last := query.get("last"):
            tags = [tag for tag in tags if tag > last[0]]
        headers = {}
        wanted = query.get("n", [""])[0]
        if wanted.isdecimal() and len(tags) > int(wanted[:9]) > 0:
            tags = tags[: int(wanted[:9])]
            path = f"/v2/{name}/tags/list?n={len(tags)}&last={tags[-1]}"
            headers["Link"] = f'<{path}>; rel="next"'
        data = json.dumps({"name": name, "tags": tags}).encode()
        self._send(data, "application/json", body, headers)

    def _blob(self, digest: str, body: bool) -> None:
        path = self.layout.blob_path(digest)
        try:
            file = path.open("rb")
        except FileNotFoundError:
            self._refuse("BLOB_UNKNOWN", f"there is no {digest} here", body)
            return
        with file:
            size = os.fstat(file.fileno()).st_size
            start, end = 0, size - 1
            wanted = _RANGE.fullmatch(self.headers.get("Range", ""))
            if wanted:
                start = int(wanted[1])
                end = min(int(wanted[2] or end), end)
                if start > end:
                    self.send_response(416)
                    self.send_header("Content-Range", f"bytes */{size}")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
            self.send_response(206 if wanted else 200)
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Content-Length", str(end - start + 1))
            self.send_header("Docker-Content-Digest", digest)
            if wanted:
                self.send_header("Content-Range", f"bytes {start}-{end}/{size}")
            self.end_headers()
            if body:
                self.wfile.flush()
                self.connection.sendfile(file, start, end - start + 1)

    def _refuse(self, code: str, message: str, body: bool) -> None:
        data = json.dumps({"errors": [{"code": code, "message": message}]}).encode()
        self._send(data, "application/json", body, status=404)

    def _send(
        self,
        data: bytes,
        kind: str,
        body: bool,
        headers: dict[str, str] | None = None,
        status: int = 200,
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Docker-Distribution-Api-Version", "registry/2.0")
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(data)
