"""A Gitea server's HTTP API, as far as releases need it: release pages and generic packages.

Paths are those of its swagger document, `/api/v1/repos/{owner}/{repo}/releases`, and of the generic
package registry, `/api/packages/{owner}/generic`. GitHub's API has other paths.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from slipway.errors import ConfigError, NetworkError, RunnerError
from slipway.image.registry.auth import Credentials

_SECONDS = 60
_MOST_PAGES = 20


@dataclass(frozen=True)
class Server:
    """A Gitea server's API for one repository; the token shows in no repr.

    Attributes:
        url: e.g. `https://git.example.com`.
        repository: `owner/name`.
    """

    url: str
    repository: str
    token: str = field(repr=False)

    def call(
        self,
        method: str,
        path: str,
        data: bytes | None = None,
        content_type: str = "application/json",
    ) -> Any:
        """The answer to one request below `/api/v1/repos/<repository>`, None where it is empty.

        Raises:
            RunnerError: the server refused.
            NetworkError: it could not be reached.
            ConfigError: `url` is no address.
        """
        headers = {"Authorization": f"token {self.token}", "Accept": "application/json"}
        if data is not None:
            headers["Content-Type"] = content_type
        url = f"{self.url.rstrip('/')}/api/v1/repos/{self.repository}{path}"
        status, body = _send(method, url, data, headers)
        if status >= 400:
            remedy = "give RELEASE_TOKEN the scope write:repository" if status < 500 else ""
            raise RunnerError(f"{method} {url}: {status}", remedy)
        return json.loads(body) if body else None


def publish(
    server: Server, tag: str, notes: str, files: Iterable[Path], *, prerelease: bool
) -> Mapping[str, Any]:
    """Make the release page of a tag and attach files; a second run completes the first.

    The page is a draft until every file is there, so nobody sees half of it.

    Raises:
        RunnerError, NetworkError: the server refused, or could not be reached.
    """
    page = _find(server, tag)
    if page is None:
        wanted = {"tag_name": tag, "name": tag, "body": notes, "draft": True}
        page = server.call("POST", "/releases", _json({**wanted, "prerelease": prerelease}))
    there = {asset["name"]: asset for asset in page.get("assets") or []}
    for path in files:
        if path.name in there:
            if there[path.name]["size"] == path.stat().st_size:
                continue
            server.call("DELETE", f"/releases/{page['id']}/assets/{there[path.name]['id']}")
        boundary = uuid.uuid4().hex
        server.call(
            "POST",
            f"/releases/{page['id']}/assets?name={quote(path.name)}",
            _multipart(path, boundary),
            f"multipart/form-data; boundary={boundary}",
        )
    done = {"body": notes, "draft": False, "prerelease": prerelease}
    return dict(server.call("PATCH", f"/releases/{page['id']}", _json(done)))


def _find(server: Server, tag: str) -> dict[str, Any] | None:
    """The page of a tag, be it a draft, which `/releases/tags/{tag}` does not show."""
    for number in range(1, _MOST_PAGES + 1):
        pages = server.call("GET", f"/releases?limit=50&page={number}") or []
        for page in pages:
            if page["tag_name"] == tag:
                return dict(page)
        if not pages:
            break
    return None


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value).encode()


def _multipart(path: Path, boundary: str) -> bytes:
    """One file as the form field `attachment` (RFC 7578)."""
    head = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="attachment"; '
        f'filename="{path.name}"\r\nContent-Type: application/octet-stream\r\n\r\n'
    )
    return head.encode() + path.read_bytes() + f"\r\n--{boundary}--\r\n".encode()


def upload_package(
    server_url: str, owner: str, credentials: Credentials, package: str, version: str, path: Path
) -> str:
    """Put a file into a generic package, and give the address that it can be loaded from.

    A file that is there already stays: packages are immutable there, and equal inputs give equal
    archives.

    Raises:
        RunnerError: the server refused.
        NetworkError: it could not be reached.
        ConfigError: `server_url` is no address.
    """
    parts = "/".join(quote(part, safe="") for part in (owner, "generic", package, version))
    url = f"{server_url.rstrip('/')}/api/packages/{parts}/{quote(path.name, safe='')}"
    headers = {"Authorization": credentials.basic, "Content-Type": "application/octet-stream"}
    status, _ = _send("PUT", url, path.read_bytes(), headers)
    if status >= 400 and status != 409:
        remedy = "give REGISTRY_PASSWORD the scope write:package" if status < 500 else ""
        raise RunnerError(f"PUT {url}: {status}", remedy)
    return url


def _send(
    method: str, url: str, data: bytes | None, headers: Mapping[str, str]
) -> tuple[int, bytes]:
    """Status and body of one answer, whatever its status.

    Raises:
        NetworkError: there was no answer.
        ConfigError: `url` is no address.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise ConfigError(f"{url!r} is no address of a server", "set GITHUB_SERVER_URL")
    request = urllib.request.Request(url, data=data, method=method, headers=dict(headers))
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()
    except OSError as error:
        raise NetworkError(f"{method} {url}: {error}") from error
