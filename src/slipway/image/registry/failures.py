"""How a registry fails, told to people: the place, the status, what it said, and what helps."""

from __future__ import annotations

import http.client
import json
from urllib.parse import urlsplit

from slipway.errors import NetworkError, RegistryError

# A connection that lasted this long (seconds) before it was cut points at a proxy's time limit.
_PROXY_TIME_LIMIT = 45.0


class DroppedError(NetworkError):
    """The connection ended in the middle of a request, and no attempt is left."""


class RefusedError(RegistryError):
    """The registry refused: `status` is HTTP's, `code` the registry's own, e.g. `BLOB_UNKNOWN`."""

    def __init__(
        self, what: str, remedy: str, status: int, code: str = "", retry_after: str = ""
    ) -> None:
        super().__init__(what, remedy)
        self.status = status
        self.code = code
        self.retry_after = retry_after


def refusal(
    host: str, method: str, path: str, status: int, body: bytes, retry_after: str = ""
) -> RefusedError:
    """The error for an answer that is none of those wanted.

    Only the path is shown, never a query: those of uploads and tokens may hold secrets.
    """
    code, message = "", ""
    try:
        first = json.loads(body)["errors"][0]
        code, message = str(first.get("code", "")), str(first.get("message", ""))
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        message = body[:120].decode(errors="replace")
    said = ": ".join(part for part in (_printable(code), _printable(message)) if part)
    return RefusedError(
        f"{method} {host}{urlsplit(path).path} was answered {status}{f' ({said})' if said else ''}",
        _REMEDIES.get(status, "").format(host=host),
        status,
        code,
        retry_after,
    )


_REMEDIES = {
    401: "docker login {host}, or set SLIPWAY_REGISTRY_USERNAME and SLIPWAY_REGISTRY_PASSWORD",
    403: "the account may not do this there: a Gitea token needs the package:write scope, and its "
    "user the right to the owner's packages",
    404: "see that registry and repository are spelled as the registry has them",
    405: "the registry does not allow this; deleting is a setting of its own (docker-registry: "
    "storage.delete.enabled)",
    413: "a proxy in front of {host} limits the body of a request (nginx: client_max_body_size); "
    "raise that limit",
    429: "{host} limits how often it is asked; try again later, or log in",
    504: "a proxy in front of {host} gave up waiting (nginx: proxy_read_timeout); raise that limit",
}


def unreachable(
    method: str, url: str, error: Exception, attempts: int, seconds: float
) -> NetworkError:
    """The error for a request that got no answer in its last attempt, which took `seconds`."""
    parts = urlsplit(url)
    where = f"{parts.scheme}://{parts.netloc}{parts.path}"
    reason = _printable(str(error)) or type(error).__name__
    times = f" ({attempts} attempts)" if attempts > 1 else ""
    dropped = isinstance(error, ConnectionError | TimeoutError | http.client.HTTPException)
    if isinstance(error, ConnectionRefusedError):
        dropped = False
        remedy = f"nobody listens at {parts.netloc}; see that the registry runs, and on which port"
    elif "WRONG_VERSION_NUMBER" in reason or "HTTP_REQUEST" in reason:
        remedy = (
            f"{parts.netloc} seems to speak plain HTTP; if that is meant, name it in "
            "SLIPWAY_INSECURE_REGISTRIES"
        )
    elif "CERTIFICATE_VERIFY_FAILED" in reason:
        remedy = "for a private authority, let SSL_CERT_FILE name its certificate (PEM)"
    elif dropped and seconds >= _PROXY_TIME_LIMIT:
        remedy = (
            f"it was cut after {seconds:.0f} s, as a proxy's time limit does (nginx: "
            "proxy_read_timeout, proxy_send_timeout); raise that limit"
        )
    else:
        remedy = "see that the registry runs and can be reached from here"
    kind = DroppedError if dropped else NetworkError
    return kind(f"{method} {where}: {reason}{times}", remedy)


def _printable(text: str) -> str:
    """`text` on one line, at most 200 characters, without what could steer a terminal."""
    return "".join(c if c.isprintable() else " " for c in text[:200]).strip()
