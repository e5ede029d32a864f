"""Asks workers whether they are well, and what they are."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass

from keel.router.upstream.fetch import FetchError, fetch
from keel.router.worker import Worker, WorkerTable

log = logging.getLogger("keel.router")


@dataclass(frozen=True)
class HealthConfig:
    """How workers are checked; times in seconds."""

    endpoint: str = "/health"
    interval: float = 10.0
    timeout: float = 5.0
    failures: int = 3
    successes: int = 2
    enabled: bool = True


class HealthChecker:
    """One task per worker, so that a worker that hangs delays no other.

    A worker that has never been well needs one good check; one that fell ill `successes` in a row.
    """

    def __init__(
        self,
        table: WorkerTable,
        config: HealthConfig,
        authorization: bytes,
        speaks_http2: Callable[[Worker], None],
    ) -> None:
        self._speaks_http2 = speaks_http2
        self._table, self._config, self._authorization = table, config, authorization
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._soon: dict[str, asyncio.Event] = {}
        table.on_join.append(self._join)
        table.on_leave.append(self._leave)

    def _join(self, worker: Worker) -> None:
        self._soon[worker.url] = asyncio.Event()
        self._tasks[worker.url] = asyncio.get_running_loop().create_task(self._watch(worker))

    def _leave(self, worker: Worker) -> None:
        if task := self._tasks.pop(worker.url, None):
            task.cancel()
        self._soon.pop(worker.url, None)

    def close(self) -> None:
        """Check no more."""
        for task in self._tasks.values():
            task.cancel()
        self._tasks.clear()

    def check_soon(self, worker: Worker) -> None:
        """Do not wait for the interval to end: something is wrong there."""
        if event := self._soon.get(worker.url):
            event.set()

    async def _watch(self, worker: Worker) -> None:
        soon = self._soon[worker.url]
        known = False
        while True:
            if not known:
                known = await self._learn(worker)
            if self._config.enabled:
                was = worker.healthy
                await self.check(worker)
                if worker.healthy and was is False:
                    known = await self._learn(worker)  # it may serve something else now
            elif known:
                return
            soon.clear()
            try:
                async with asyncio.timeout(self._pause(worker)):
                    await soon.wait()
                await asyncio.sleep(min(0.05, self._config.interval))
            except TimeoutError:
                pass

    def _pause(self, worker: Worker) -> float:
        """A worker in doubt is asked ten times as often."""
        in_doubt = worker.healthy is not True or worker.check_failures > 0
        return self._config.interval / 10 if in_doubt else self._config.interval

    async def check(self, worker: Worker) -> bool:
        """One check, and what follows from it."""
        try:
            answer = await fetch(
                worker.upstream,
                "GET",
                self._config.endpoint,
                timeout=self._config.timeout,
                headers=self._authorization,
            )
            problem = "" if 200 <= answer.status < 300 else f"status {answer.status}"
        except FetchError as error:
            problem = str(error)
        if problem:
            self._failed(worker, problem)
        else:
            self._succeeded(worker)
        return not problem

    def _failed(self, worker: Worker, problem: str) -> None:
        worker.check_successes = 0
        worker.check_failures += 1
        if worker.healthy is not False and worker.check_failures >= self._config.failures:
            log.warning("worker %s is unhealthy: %s", worker.url, problem)
            worker.healthy = False
            self._table.changed()

    def _succeeded(self, worker: Worker) -> None:
        worker.check_failures = 0
        worker.check_successes += 1
        if worker.healthy is True:
            return
        recovers = worker.healthy is False
        if recovers and worker.check_successes < self._config.successes:
            return
        log.info("worker %s is healthy", worker.url)
        worker.healthy = True
        if recovers:
            worker.breaker.recovered()
            self._table.warm_up(worker)
        self._table.changed()

    async def _learn(self, worker: Worker) -> bool:
        """Ask what a worker serves and whether it speaks HTTP/2; False if it did not say."""
        try:
            models = await self._ask(worker, "/v1/models")
        except FetchError:
            return False
        data = models.get("data")
        names = [m.get("id") for m in data if isinstance(m, dict)] if isinstance(data, list) else []
        learned = tuple(name for name in names if isinstance(name, str))
        try:
            info = await self._ask(worker, "/server_info")
        except FetchError:
            info = {}
        if info.get("enable_http2") is True:
            self._speaks_http2(worker)
        if learned != worker.learned_models:
            worker.learned_models = learned
            self._table.changed()
        return True

    async def _ask(self, worker: Worker, target: str) -> dict[str, object]:
        answer = await fetch(
            worker.upstream,
            "GET",
            target,
            timeout=self._config.timeout,
            headers=self._authorization,
        )
        if answer.status >= 500:
            raise FetchError(f"status {answer.status}")
        if answer.status != 200:
            return {}
        try:
            value = json.loads(answer.body)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}
