"""What the router answers itself, beside the requests for workers."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol
from urllib.parse import parse_qs, unquote

import msgspec

from keel.router.answer import own_answer
from keel.router.client import ClientConnection, ClientRequest
from keel.router.metrics import Snapshot, render
from keel.router.refusal import Refusal, no_workers
from keel.router.router import Router
from keel.router.upstream.fetch import FetchError, fetch
from keel.router.worker import Role, Worker, WorkerSpec

log = logging.getLogger("keel.router")

_JSON = "application/json"
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_MODELS_TIMEOUT_SECONDS = 2.0


class Control(Protocol):
    """What concerns all router processes."""

    async def add(self, spec: WorkerSpec) -> None:
        """A worker joins. Raises ValueError if there is no room."""

    async def drain(self, url: str) -> bool:
        """A worker is to leave; False: there is no such."""

    async def remove(self, url: str) -> bool:
        """A worker leaves at once; False: there is no such."""

    async def snapshot(self) -> Snapshot:
        """The metrics of all."""


class LocalAnswer(msgspec.Struct, frozen=True):
    """An answer of the router's own."""

    status: int
    body: bytes
    content_type: str = _JSON


LocalWork = Callable[[ClientConnection, ClientRequest], Awaitable[LocalAnswer]]


class LocalCall:
    """A request that the router answers itself; a `Handling`."""

    def __init__(
        self, router: Router, client: ClientConnection, request: ClientRequest, work: LocalWork
    ) -> None:
        self._router, self._client, self._request = router, client, request
        self._task = asyncio.get_running_loop().create_task(self._run(work))

    async def _run(self, work: LocalWork) -> None:
        request, client = self._request, self._client
        try:
            answer = await work(client, request)
        except Refusal as refusal:
            self._refuse(refusal)
        except Exception:
            log.exception("%s %s", request.method.decode(), request.path.decode("latin-1"))
            self._refuse(
                Refusal(500, "internal_error", "the router failed on this; its log says how")
            )
        else:
            client.write(own_answer(answer.status, answer.body, answer.content_type, request))
        client.finished(request.keep_alive)

    def _refuse(self, refusal: Refusal) -> None:
        request_id = self._router.request_id(self._request)
        self._router.write_refusal(self._client, self._request, refusal, request_id)

    def client_gone(self) -> None:
        """As `Handling.client_gone`."""
        self._task.cancel()

    def client_paused(self) -> None:
        """As `Handling.client_paused`; these answers are small."""

    def client_resumed(self) -> None:
        """As `Handling.client_resumed`."""


class LocalRoutes:
    """The paths that the router answers itself."""

    def __init__(self, router: Router, control: Control) -> None:
        self._router, self._control = router, control
        for path, work in {
            "/health": self._health,
            "/liveness": self._health,
            "/ready": self._ready,
            "/readiness": self._ready,
            "/metrics": self._metrics,
            "/v1/models": self._models,
            "/workers": self._workers,
            "/list_workers": self._workers,
            "/add_worker": self._add_worker,
            "/remove_worker": self._remove_worker,
            "/abort_request": self._to_all,
            "/flush_cache": self._to_all,
        }.items():
            router.local[path.encode()] = self._bound(work)
        router.local_below[b"/workers/"] = self._bound(self._worker)

    def _bound(self, work: LocalWork) -> Callable[[ClientConnection, ClientRequest], LocalCall]:
        return lambda client, request: LocalCall(self._router, client, request, work)

    async def _health(self, _: ClientConnection, __: ClientRequest) -> LocalAnswer:
        return LocalAnswer(200, b'{"status":"ok"}')

    async def _ready(self, _: ClientConnection, __: ClientRequest) -> LocalAnswer:
        router = self._router
        roles = (Role.PREFILL, Role.DECODE) if router.pd else (Role.PLAIN,)
        usable = {
            role: sum(w.usable for w in router.table if w.spec.role is role) for role in roles
        }
        ready = all(usable.values()) and not router.stopping
        counts = {role.value: count for role, count in usable.items()}
        body = {"ready": ready, "workers": counts, "stopping": router.stopping}
        return LocalAnswer(200 if ready else 503, json.dumps(body).encode())

    async def _metrics(self, _: ClientConnection, __: ClientRequest) -> LocalAnswer:
        return LocalAnswer(200, render(await self._control.snapshot()), _METRICS_TYPE)

    async def _models(self, _: ClientConnection, request: ClientRequest) -> LocalAnswer:
        """The models of all workers that answer; one that hangs is not waited for long."""
        usable = [worker for worker in self._router.table if worker.usable]
        headers = self._authorization(request)
        answers = await asyncio.gather(
            *(self._models_of(worker, headers) for worker in usable), return_exceptions=True
        )
        merged: dict[str, Any] = {}
        for answer in answers:
            if isinstance(answer, BaseException):
                if not isinstance(answer, FetchError):
                    raise answer
                continue
            for model in answer:
                merged.setdefault(str(model.get("id")), model)
        if not merged:
            raise no_workers("")
        body = {"object": "list", "data": list(merged.values())}
        return LocalAnswer(200, json.dumps(body).encode())

    async def _models_of(self, worker: Worker, headers: bytes) -> list[dict[str, Any]]:
        answer = await fetch(
            worker.upstream,
            "GET",
            "/v1/models",
            timeout=_MODELS_TIMEOUT_SECONDS,
            headers=headers,
        )
        try:
            value = json.loads(answer.body)
        except ValueError as error:
            raise FetchError(str(error)) from None
        data = value.get("data") if isinstance(value, dict) and answer.status == 200 else None
        return [m for m in data if isinstance(m, dict)] if isinstance(data, list) else []

    def _authorization(self, request: ClientRequest) -> bytes:
        bearer = request.known.get(b"authorization") or self._router.bearer
        return b"authorization: " + bearer + b"\r\n" if bearer else b""

    # Administration.

    def _require_admin(self, client: ClientConnection, request: ClientRequest) -> None:
        key = self._router.args.admin_api_key
        if key is not None:
            given = request.known.get(b"authorization") or b""
            if not hmac.compare_digest(given, f"Bearer {key}".encode()):
                raise Refusal(401, "admin_key_wrong", "the admin API key is missing or wrong")
        elif not _is_loopback(client.peer):
            raise Refusal(
                403, "admin_only_local", "without --admin-api-key only loopback may change workers"
            )

    async def _workers(self, client: ClientConnection, request: ClientRequest) -> LocalAnswer:
        if request.method == b"GET":
            workers = [described(worker) for worker in self._router.table]
            return LocalAnswer(200, json.dumps({"workers": workers}).encode())
        if request.method != b"POST":
            raise _wrong_method(request)
        self._require_admin(client, request)
        try:
            spec = msgspec.json.decode(request.body, type=WorkerSpec)
        except (msgspec.MsgspecError, ValueError) as error:
            raise Refusal(400, "invalid_worker", str(error)) from None
        return await self._add(spec)

    async def _add(self, spec: WorkerSpec) -> LocalAnswer:
        try:
            await self._control.add(spec)
        except ValueError as error:
            raise Refusal(409, "too_many_workers", str(error)) from None
        return LocalAnswer(201, json.dumps({"url": spec.url, "state": "joins"}).encode())

    async def _add_worker(self, client: ClientConnection, request: ClientRequest) -> LocalAnswer:
        self._require_admin(client, request)
        try:
            return await self._add(WorkerSpec(_url_in_query(request)))
        except ValueError as error:
            raise Refusal(400, "invalid_worker", str(error)) from None

    async def _remove_worker(self, client: ClientConnection, request: ClientRequest) -> LocalAnswer:
        self._require_admin(client, request)
        return await self._drain(_url_in_query(request))

    async def _worker(self, client: ClientConnection, request: ClientRequest) -> LocalAnswer:
        """`/workers/{URL, quoted}` and `/workers/{URL, quoted}/drain`."""
        rest = request.path.removeprefix(b"/workers/").decode("latin-1")
        name, _, verb = rest.partition("/") if "://" not in rest else (rest, "", "")
        url = unquote(name).rstrip("/")
        if request.method == b"GET" and not verb:
            worker = self._router.table.get(url)
            if worker is None:
                raise _no_such(url)
            return LocalAnswer(200, json.dumps(described(worker)).encode())
        self._require_admin(client, request)
        if request.method == b"POST" and verb == "drain":
            return await self._drain(url)
        if request.method == b"DELETE" and not verb:
            if b"force=true" not in request.target.partition(b"?")[2]:
                return await self._drain(url)
            if not await self._control.remove(url):
                raise _no_such(url)
            return LocalAnswer(200, json.dumps({"url": url, "state": "removed"}).encode())
        raise _wrong_method(request)

    async def _drain(self, url: str) -> LocalAnswer:
        if not await self._control.drain(url):
            raise _no_such(url)
        return LocalAnswer(202, json.dumps({"url": url, "state": "draining"}).encode())

    async def _to_all(self, client: ClientConnection, request: ClientRequest) -> LocalAnswer:
        """An engine path that means every worker, and that not every client may use."""
        self._require_admin(client, request)
        headers = b"content-type: application/json\r\n" + self._authorization(request)
        workers = list(self._router.table)
        answers = await asyncio.gather(
            *(
                fetch(
                    worker.upstream,
                    request.method.decode(),
                    request.target.decode("latin-1"),
                    timeout=self._router.args.health_check_timeout_secs,
                    headers=headers,
                    body=request.body,
                )
                for worker in workers
            ),
            return_exceptions=True,
        )
        results = {
            worker.url: getattr(answer, "status", None) or str(answer)
            for worker, answer in zip(workers, answers, strict=True)
        }
        good = all(isinstance(status, int) and status < 300 for status in results.values())
        return LocalAnswer(200 if good else 502, json.dumps({"workers": results}).encode())


def described(worker: Worker) -> dict[str, Any]:
    """A worker for people and machines."""
    return {
        "url": worker.url,
        "role": worker.spec.role.value,
        "models": list(worker.models),
        "bootstrap_port": worker.spec.bootstrap_port,
        "bucket": worker.spec.bucket if worker.spec.bucket != float("inf") else "inf",
        "healthy": worker.healthy,
        "draining": worker.draining,
        "breaker": worker.breaker.state.name.lower(),
        "load": worker.load,
        "token_load": worker.token_load,
    }


def _is_loopback(peer: str) -> bool:
    try:
        return ipaddress.ip_address(peer).is_loopback
    except ValueError:
        return False


def _url_in_query(request: ClientRequest) -> str:
    query = parse_qs(request.target.partition(b"?")[2].decode("latin-1"))
    urls = query.get("url")
    if not urls:
        raise Refusal(400, "invalid_worker", "the query has no url=")
    return urls[0].rstrip("/")


def _no_such(url: str) -> Refusal:
    return Refusal(404, "no_such_worker", f"{url!r} is no worker; GET /workers lists them")


def _wrong_method(request: ClientRequest) -> Refusal:
    method = request.method.decode("latin-1")
    return Refusal(405, "method_not_allowed", f"{method} is not for this path")
