"""A release of a version tag: its changelog section, and its page with files on a Gitea server.

The page is made through Gitea's HTTP API, `/api/v1/repos/{owner}/{repo}/releases` (its swagger
document). GitHub's API has other paths and another way to upload.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from slipway.errors import ConfigError, NetworkError, RunnerError, UsageError

_VERSION = re.compile(r"v\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]+)?")
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
        if urlsplit(self.url).scheme not in ("http", "https"):
            raise ConfigError(f"{self.url!r} is no address of a server", "set GITHUB_SERVER_URL")
        request = urllib.request.Request(
            f"{self.url.rstrip('/')}/api/v1/repos/{self.repository}{path}",
            data=data,
            method=method,
            headers={"Authorization": f"token {self.token}", "Accept": "application/json"},
        )
        if data is not None:
            request.add_header("Content-Type", content_type)
        try:
            with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
                body = answer.read()
        except urllib.error.HTTPError as error:
            error.close()
            remedy = "give RELEASE_TOKEN the scope write:repository" if error.code < 500 else ""
            raise RunnerError(f"{method} {request.full_url}: {error.code}", remedy) from error
        except OSError as error:
            raise NetworkError(f"{method} {request.full_url}: {error}") from error
        return json.loads(body) if body else None


def check_version(tag: str) -> str:
    """`vX.Y.Z[-pre]`.

    Raises:
        UsageError: it is another name.
    """
    if not _VERSION.fullmatch(tag):
        raise UsageError(f"{tag!r} is no version tag", "name it like v1.2.0")
    return tag


def changelog_section(text: str, tag: str) -> str:
    """What `CHANGELOG.md` says of a version (`## 1.2.0`, with or without v and a date).

    Raises:
        ConfigError: it says nothing: a release without a word to its users is a mistake.
    """
    version = re.escape(tag.removeprefix("v"))
    head = re.compile(rf"^## \[?v?{version}\]?(?:[ \t].*)?$", re.MULTILINE)
    if (found := head.search(text)) is None:
        raise ConfigError(
            f"CHANGELOG.md has no section for {tag}", f"head one with: ## {tag.removeprefix('v')}"
        )
    rest = text[found.end() :]
    end = re.search(r"^## ", rest, re.MULTILINE)
    return rest[: end.start() if end else len(rest)].strip()


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
