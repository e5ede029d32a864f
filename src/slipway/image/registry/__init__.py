"""A client of any OCI registry (distribution spec 1.1) over `http.client`, whose import is quick.

`Registry(host).repository(name)` answers for one repository; `push_image` and `pull_image` move
whole images. Every digest is checked in both directions, and nothing half-done is visible: blobs,
then the manifest under its immutable tag, then a read back, then the names that move.
"""

from __future__ import annotations

from slipway.image.registry.auth import Credentials
from slipway.image.registry.failures import DroppedError, RefusedError
from slipway.image.registry.index import make_index, push_index
from slipway.image.registry.progress import Progress, reporter
from slipway.image.registry.repository import Registry, Repository
from slipway.image.registry.retry import Retries
from slipway.image.registry.transfer import PushReport, pull_image, push_image

__all__ = [
    "Credentials",
    "DroppedError",
    "Progress",
    "PushReport",
    "RefusedError",
    "Registry",
    "Repository",
    "Retries",
    "make_index",
    "pull_image",
    "push_image",
    "push_index",
    "reporter",
]
