"""Debian's docker-registry as tests need it: open, behind a password, a token server, or TLS."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from support.services import free_port, running

USER, PASSWORD = "ann", "correct horse"
# bcrypt of PASSWORD, cost 5, as `htpasswd -B` writes it.
_HTPASSWD = "$2b$05$lHcrWuZvStXxsLkTH5Vb9uphNtx2WnzAle8Qgo.MH7x9iwPP.WH6a"


@contextmanager
def docker_registry(folder: Path, extra: str = "", http: str = "") -> Iterator[str]:
    """The registry over `folder`, with more of its configuration; gives `127.0.0.1:port`."""
    program = shutil.which("docker-registry")
    if program is None:
        pytest.skip("docker-registry is not installed (apt-get install docker-registry)")
    folder.mkdir(parents=True, exist_ok=True)
    address = f"127.0.0.1:{free_port()}"
    debug = f"127.0.0.1:{free_port()}"
    config = folder / "config.yml"
    config.write_text(
        "version: 0.1\nlog: {level: error}\n"
        f"storage: {{filesystem: {{rootdirectory: {folder}/data}}, delete: {{enabled: true}}}}\n"
        f"http:\n  addr: {address}\n  debug: {{addr: {debug}}}\n{http}{extra}"
    )
    ready = f"http://{debug}/debug/health"
    with running([program, "serve", str(config)], ready, 20, folder / "registry.log"):
        yield address


@contextmanager
def password_registry(folder: Path) -> Iterator[str]:
    """Behind USER and PASSWORD (htpasswd)."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "htpasswd").write_text(f"{USER}:{_HTPASSWD}\n")
    extra = f"auth: {{htpasswd: {{realm: test, path: {folder}/htpasswd}}}}\n"
    with docker_registry(folder, extra) as host:
        yield host


@contextmanager
def tls_registry(folder: Path) -> Iterator[tuple[str, Path]]:
    """Over TLS; also gives the certificate to trust."""
    folder.mkdir(parents=True, exist_ok=True)
    key, certificate = make_certificate(folder)
    http = f"  tls: {{certificate: {certificate}, key: {key}}}\n"
    with docker_registry(folder, http=http) as host:
        yield host, certificate


@dataclass
class TokenServer:
    """Signs what the distribution project's token specification asks for.

    Attributes:
        expired: how many of its next tokens have run out long ago (the registry allows for a
            minute's difference of clocks).
        asked: the scopes of each request, and whether it came with the right password.
    """

    key: Path
    certificate: Path
    expired: int = 0
    asked: list[tuple[tuple[str, ...], bool]] = field(default_factory=list)

    def token(self, scopes: list[str]) -> str:
        """A JWT that grants all of `scopes`."""
        der = "".join(self.certificate.read_text().splitlines()[1:-1])
        access = []
        for scope in scopes:
            kind, name, actions = scope.split(":")
            access.append({"type": kind, "name": name, "actions": actions.split(",")})
        now = int(time.time())
        lifetime = -600 if self.expired > 0 else 300
        self.expired -= 1
        claims = {
            "iss": "test",
            "sub": USER,
            "aud": "test-registry",
            "exp": now + lifetime,
            "nbf": now - 900,
            "iat": now - 900,
            "jti": "x",
            "access": access,
        }
        parts = [{"typ": "JWT", "alg": "RS256", "x5c": [der]}, claims]
        signed = ".".join(_base64(json.dumps(part).encode()) for part in parts)
        signature = subprocess.run(
            ["openssl", "dgst", "-sha256", "-sign", str(self.key)],
            input=signed.encode(),
            capture_output=True,
            check=True,
        ).stdout
        return f"{signed}.{_base64(signature)}"


@contextmanager
def token_registry(folder: Path) -> Iterator[tuple[str, TokenServer]]:
    """Behind a token server, which lets USER with PASSWORD do everything, others nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    tokens = TokenServer(*make_certificate(folder))
    right = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            known = self.headers.get("Authorization") == right
            scopes = parse_qs(urlsplit(self.path).query).get("scope", [])
            tokens.asked.append((tuple(scopes), known))
            answer = {"token": tokens.token(scopes), "expires_in": 300} if known else {}
            data = json.dumps(answer).encode()
            self.send_response(200 if known else 401)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ExitStack() as stack:
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        stack.callback(server.server_close)
        stack.callback(server.shutdown)
        extra = (
            f"auth: {{token: {{realm: 'http://127.0.0.1:{server.server_address[1]}/token', "
            f"service: test-registry, issuer: test, rootcertbundle: {tokens.certificate}}}}}\n"
        )
        yield stack.enter_context(docker_registry(folder, extra)), tokens


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A key and a certificate of its own for 127.0.0.1 and registry.test, by openssl."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed (apt-get install openssl)")
    key, certificate = folder / "key.pem", folder / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += [
        "-subj",
        "/CN=127.0.0.1",
        "-addext",
        "subjectAltName=IP:127.0.0.1,DNS:registry.test",
    ]
    command += ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    return key, certificate


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
