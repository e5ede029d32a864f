"""What a runner has wrong, said at once: registry, credentials, scope, limits, clone, clock."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Literal
from urllib.parse import urlsplit

from slipway.build.git import Checkout
from slipway.errors import NetworkError, SlipwayError
from slipway.image.reference import Reference
from slipway.image.registry import RefusedError, Registry
from slipway.image.registry.auth import Credentials, find_credentials

# Tokens are refused, and certificates misjudged, by clocks that differ by more.
MOST_SKEW = 600.0  # seconds
# A request as long as a large layer (of torch) is announced, and not sent.
LARGE = 1 << 30  # bytes
_PROBE_SECONDS = 2.0


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at; `fails` stops the workflow, `warns` does not."""

    name: str
    level: Literal["ok", "warns", "fails"]
    what: str
    remedy: str = ""

    def __str__(self) -> str:
        fix = f"\n         fix: {self.remedy}" if self.remedy else ""
        return f"{self.level:<6} {self.name}: {self.what}{fix}"


def check(
    checkout: Checkout, target: Reference, now: Callable[[], float] = time.time
) -> list[Finding]:
    """Look at everything; a failure of one thing hides no other.

    Args:
        target: where images will be pushed.
        now: this machine's clock, in seconds since 1970.
    """
    found = [*_clone(checkout)]
    try:
        credentials = find_credentials(target.registry)
    except SlipwayError as error:
        return [*found, Finding("credentials", "fails", error.what, error.remedy)]
    if credentials is None:
        found.append(
            Finding(
                "credentials",
                "warns",
                f"none for {target.registry}",
                "set the secrets REGISTRY_USERNAME and REGISTRY_PASSWORD: a personal access token "
                "with package scope, since the job's own token cannot publish packages",
            )
        )
    else:
        found.append(Finding("credentials", "ok", f"as {credentials.username or 'a token'}"))
    return [*found, *_registry(target, credentials, now)]


def _clone(checkout: Checkout) -> list[Finding]:
    if checkout.text("rev-parse", "--is-shallow-repository") == "true":
        return [
            Finding(
                "clone",
                "fails",
                "it is shallow: neither the version nor the commits since the last image are known",
                "actions/checkout with fetch-depth: 0, or git fetch --unshallow --tags",
            )
        ]
    if not checkout.text("tag", "--list", "v*"):
        return [
            Finding(
                "clone",
                "warns",
                "it has no version tag, so the version is a guess",
                "git fetch --tags, or tag a first version",
            )
        ]
    return [Finding("clone", "ok", "whole, with version tags")]


def _registry(
    target: Reference, credentials: Credentials | None, now: Callable[[], float]
) -> list[Finding]:
    registry = Registry(target.registry, attempts=2)
    scope = f"repository:{target.repository}:pull,push"
    path = f"/v2/{target.repository}/blobs/uploads/"
    try:
        answer = registry.transport.request("POST", path, scope=scope, accept=(202,))
        # An upload that nobody continues would lie there until the registry cleans up.
        registry.transport.request(
            "DELETE", answer.header("location"), scope=scope, accept=(200, 202, 204, 404, 405)
        )
    except RefusedError as error:
        return [Finding("write scope", "fails", error.what, _remedy(error, credentials))]
    except NetworkError as error:
        return [Finding("registry", "fails", error.what, error.remedy)]
    except SlipwayError as error:
        return [Finding("write scope", "fails", error.what, error.remedy)]
    finally:
        registry.close()
    written = Finding("write scope", "ok", f"{target.name} may be written")
    return [written, *_clock(answer.header("date"), now()), *_limit(registry, target)]


def _remedy(error: RefusedError, credentials: Credentials | None) -> str:
    if error.status == 401 and credentials is None:
        return "set the secrets REGISTRY_USERNAME and REGISTRY_PASSWORD"
    if error.status in (401, 403):
        return (
            "give the workflow a personal access token with the scope write:package, of a user who "
            "may write the owner's packages"
        )
    return error.remedy


def _clock(date: str, now: float) -> list[Finding]:
    try:
        theirs = parsedate_to_datetime(date).timestamp()
    except ValueError:
        return []
    skew = now - theirs
    if abs(skew) > MOST_SKEW:
        way = "ahead of" if skew > 0 else "behind"
        return [
            Finding(
                "clock",
                "fails",
                f"it is {abs(skew) / 3600:.1f} h {way} the registry's: tags would carry a wrong "
                "time, and tokens are refused",
                "timedatectl set-ntp true on the runner's host",
            )
        ]
    return [Finding("clock", "ok", f"{abs(skew):.0f} s off")]


def _limit(registry: Registry, target: Reference) -> list[Finding]:
    """Announce a large body, and see whether a proxy refuses it before a byte was sent.

    Proxies judge `Content-Length` alone (nginx: client_max_body_size), before any credentials.
    """
    url = urlsplit(registry.transport.locate(f"/v2/{target.repository}/blobs/uploads/preflight"))
    secure = url.scheme == "https"
    kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    connection = kind(url.netloc, timeout=_PROBE_SECONDS)
    try:
        connection.putrequest("PATCH", url.path)
        connection.putheader("Content-Length", str(LARGE))
        connection.putheader("Expect", "100-continue")
        connection.endheaders()
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException):
        # It waits for the body: nothing is refused.
        return []
    finally:
        connection.close()
    if status != 413:
        return []
    return [
        Finding(
            "large layers",
            "warns",
            f"a proxy in front of {target.registry} refuses requests of 1 GiB (413); layers go in "
            "smaller pieces, which is slower",
            "raise its limit (nginx: client_max_body_size 0)",
        )
    ]
