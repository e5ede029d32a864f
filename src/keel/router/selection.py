"""From a request to its worker: model, then length bucket, then breaker, then the pool's policy."""

from __future__ import annotations

import random
import time
from collections.abc import Collection
from dataclasses import dataclass

from keel.router.policies import Ask, Policy, PolicyConfig, make_policy
from keel.router.refusal import breaker_open, no_workers, unknown_model
from keel.router.worker import Role, Worker, WorkerTable

# A worker that just joined gets at least this share of its share.
_COLDEST = 0.1


@dataclass(frozen=True)
class PolicyChoice:
    """Which policy serves which pool.

    Args:
        default: where nothing else is said.
        by_role: for prefill and decode.
        by_model: before all others.
    """

    default: str
    by_role: dict[Role, str]
    by_model: dict[str, str]

    def name_for(self, role: Role, model: str) -> str:
        """The policy's name for a pool."""
        return self.by_model.get(model) or self.by_role.get(role) or self.default


class Selector:
    """Chooses workers. Per model and role there is a pool with a policy of its own.

    Who is in a pool is worked out again only when the table changed; in between, choosing costs
    what the policy costs.
    """

    def __init__(self, table: WorkerTable, choice: PolicyChoice, config: PolicyConfig) -> None:
        self._table, self._choice, self._config = table, choice, config
        self._policies: dict[tuple[Role, str], Policy] = {}
        self._pools: dict[tuple[Role, str], list[Worker]] = {}
        self._models: dict[str, list[Worker]] = {}
        self._several = False
        self._version = -1
        self._bucketed = False
        names = {choice.default, *choice.by_role.values(), *choice.by_model.values()}
        self._may_read = any(make_policy(name, config).reads_prompt for name in names)
        table.on_leave.append(self._forget)

    def reads_prompt(self, role: Role, model: str) -> bool:
        """Whether the pool's policy wants `Ask.prompt`."""
        return self._may_read and self.policy(role, model).reads_prompt

    def policy(self, role: Role, model: str) -> Policy:
        """The pool's policy."""
        self._refresh()
        key = (role, model if self._names_a_pool(model) else "")
        policy = self._policies.get(key)
        if policy is None:
            name = self._choice.name_for(role, model)
            policy = self._policies[key] = make_policy(name, self._config)
        return policy

    def choose(
        self,
        role: Role,
        model: str,
        ask: Ask,
        *,
        length: int = 0,
        without: Collection[Worker] = (),
        bucket: float | None = None,
    ) -> tuple[Worker, int]:
        """A worker, and the permit of its breaker.

        Args:
            length: tokens of the whole request; chooses the length bucket.
            without: workers that have been tried.
            bucket: chosen before, for the other half of the request.

        Raises:
            Refusal: 404 for a model that nobody serves, 503 where nobody can take the request.
        """
        pool = self._pool(role, model)
        if self._bucketed:
            pool = in_bucket(pool, length, bucket)
        if without:
            pool = [worker for worker in pool if worker not in without]
        if self._table.warming:
            pool = self._without_cold(pool)
        if not pool:
            raise no_workers(model)
        policy = self.policy(role, model)
        while True:
            worker = policy.pick(pool, ask)
            permit = worker.breaker.acquire()
            if permit is not None:
                return worker, permit
            pool = [other for other in pool if other.breaker.admits]
            if not pool:
                raise breaker_open(worker.url)

    def known(self, model: str) -> bool:
        """Whether a worker says that it serves the model."""
        self._refresh()
        return model in self._models

    def _names_a_pool(self, model: str) -> bool:
        return model in self._choice.by_model or (self._several and model in self._models)

    def _refresh(self) -> None:
        if self._version == self._table.version:
            return
        self._version = self._table.version
        self._pools.clear()
        self._models = self._table.models()
        sets = {frozenset(worker.models) for worker in self._table if worker.models}
        self._several = len(sets) > 1
        self._bucketed = any(worker.spec.bucket is not None for worker in self._table)

    def _pool(self, role: Role, model: str) -> list[Worker]:
        self._refresh()
        name = model if self._several else ""
        key = (role, name)
        pool = self._pools.get(key)
        if pool is None:
            pool = self._make_pool(role, name)
            if len(self._pools) < 1024:
                self._pools[key] = pool
        return pool

    def _make_pool(self, role: Role, model: str) -> list[Worker]:
        members = [worker for worker in self._table if worker.spec.role is role]
        if model:
            serving = [worker for worker in members if model in worker.models]
            members = serving or [worker for worker in members if not worker.models]
            if not members and len(self._table):
                raise unknown_model(model)
        return [worker for worker in members if worker.usable]

    def _without_cold(self, pool: list[Worker]) -> list[Worker]:
        now = time.monotonic()
        if now >= self._table.warming:
            self._table.warming = 0.0
            return pool
        warm = [worker for worker in pool if random.random() < warmth(worker, now)]
        return warm or pool

    def _forget(self, worker: Worker) -> None:
        for policy in self._policies.values():
            policy.forget(worker)


def warmth(worker: Worker, now: float) -> float:
    """The part of its share, 0 to 1, that a worker gets; grows over its slow start."""
    if now >= worker.warm_at:
        return 1.0
    passed = (now - worker.warm_since) / (worker.warm_at - worker.warm_since)
    return max(_COLDEST, passed)


def in_bucket(pool: list[Worker], length: int, bucket: float | None) -> list[Worker]:
    """The workers of the smallest bucket that a request fits in; without one: those of any length.

    A request that fits nowhere goes to the largest bucket, whose engines refuse it in their words.
    """
    limits = sorted({w.spec.bucket for w in pool if w.spec.bucket is not None})
    if not limits:
        return pool
    if bucket is None:
        bucket = next((limit for limit in limits if length <= limit), None)
        if bucket is None:
            anybody = [worker for worker in pool if worker.spec.bucket is None]
            if anybody:
                return anybody
            bucket = limits[-1]
    return [worker for worker in pool if worker.spec.bucket == bucket]
