"""Workers among the containers of a Docker Engine, found by a label."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any
from urllib.parse import quote

import msgspec

from keel.router.worker import WorkerSpec

log = logging.getLogger("keel.router")

_TIMEOUT_SECONDS = 5.0
_MAX_ANSWER = 32 * 2**20
_DEFAULT_PORT = "30000"
# What a container says of itself, besides the label that it is found by.
_PORT, _ROLE = "keel.port", "keel.role"
_BOOTSTRAP_PORT, _MODEL, _BUCKET = "keel.bootstrap-port", "keel.model", "keel.bucket"


class DockerSource:
    """Asks the Engine for running containers.

    A worker's address is the container's on its first network, its port the label `keel.port`
    (30000 where it has none). `keel.role`, `keel.bootstrap-port`, `keel.model` and `keel.bucket`
    say the rest.

    Args:
        path: of the Engine's socket.
        label: `NAME` or `NAME=VALUE`.
    """

    def __init__(self, path: str, label: str) -> None:
        self._path = path
        filters = {"label": [label], "status": ["running"]}
        self._target = f"/containers/json?filters={quote(json.dumps(filters))}"

    async def workers(self) -> list[WorkerSpec]:
        """The workers that run now.

        Raises:
            OSError: the Engine does not answer, or not with a list.
        """
        found = []
        for container in await self._ask():
            spec = spec_of(container)
            if spec is not None:
                found.append(spec)
        return found

    async def _ask(self) -> list[dict[str, Any]]:
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                reader, writer = await asyncio.open_unix_connection(self._path)
                try:
                    writer.write(f"GET {self._target} HTTP/1.0\r\nHost: docker\r\n\r\n".encode())
                    answer = await reader.read(_MAX_ANSWER)
                    while not reader.at_eof():
                        answer += await reader.read(_MAX_ANSWER)
                finally:
                    writer.close()
        except TimeoutError:
            raise OSError(f"{self._path}: no answer in {_TIMEOUT_SECONDS:g} s") from None
        head, _, body = answer.partition(b"\r\n\r\n")
        status = head.split(b" ", 2)[1:2]
        if status != [b"200"]:
            raise OSError(f"{self._path}: {body.decode('utf-8', 'replace').strip()[:200]}")
        try:
            value = json.loads(body)
        except ValueError as error:
            raise OSError(f"{self._path}: {error}") from None
        if not isinstance(value, list):
            raise OSError(f"{self._path}: the answer is no list")
        return value


def spec_of(container: dict[str, Any]) -> WorkerSpec | None:
    """The worker that a container of `/containers/json` is; None if it cannot be one (logged)."""
    labels: dict[str, str] = container.get("Labels") or {}
    networks = (container.get("NetworkSettings") or {}).get("Networks") or {}
    address = next((n["IPAddress"] for _, n in sorted(networks.items()) if n.get("IPAddress")), "")
    if not address:
        return None
    fields: dict[str, Any] = {"url": f"http://{address}:{labels.get(_PORT, _DEFAULT_PORT)}"}
    if role := labels.get(_ROLE):
        fields["role"] = role
    if port := labels.get(_BOOTSTRAP_PORT):
        fields["bootstrap_port"] = port
    if model := labels.get(_MODEL):
        fields["models"] = (model,)
    if bucket := labels.get(_BUCKET):
        fields["bucket"] = bucket
    try:
        return msgspec.convert(fields, WorkerSpec, strict=False)
    except (msgspec.ValidationError, ValueError) as error:
        log.warning("container %s is no worker: %s", str(container.get("Id"))[:12], error)
        return None
