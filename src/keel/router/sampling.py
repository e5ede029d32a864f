"""The sampling contract: values that requests get where they set none, and what they may set."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from keel.router.fields import ABSENT, UNREADABLE, Fields, sampling_of
from keel.router.refusal import Refusal


class SamplingContract:
    """Defaults and bands of sampling fields.

    Args:
        rules: field to a number, or to `{"min": .., "max": ..}`; as `keel.args` checked.
        reject: whether a request with another value is refused, else its value stands.
        violated: called with the field's name for each refusal.
    """

    def __init__(
        self, rules: Mapping[str, Any], reject: bool, violated: Callable[[str], None]
    ) -> None:
        self._rules, self._reject, self._violated = rules, reject, violated
        self._members = {
            name: f"{json.dumps(name)}:{json.dumps(rule)}".encode()
            for name, rule in rules.items()
            if not isinstance(rule, dict)
        }
        n = rules.get("n")
        self.default_n: int | None = n if isinstance(n, int) else None

    def resolve(self, fields: Fields) -> bytes:
        """The members to add to a request, like `"temperature":1.0`; empty where none.

        Raises:
            Refusal: 400 `sampling_contract_violation`.
        """
        added = []
        for name, rule in self._rules.items():
            value = None if getattr(fields, name) is ABSENT else sampling_of(fields, name)
            if value is None:
                if name in self._members:
                    added.append(self._members[name])
            elif self._reject and not _keeps(value, rule):
                self._violated(name)
                raise Refusal(
                    400,
                    "sampling_contract_violation",
                    f"{name} is set by this deployment to {json.dumps(rule)}; leave it out",
                    name,
                )
        return b",".join(added)


def _keeps(value: object, rule: Any) -> bool:
    if value is UNREADABLE or not isinstance(value, int | float):
        return False
    if isinstance(rule, dict):
        low, high = rule.get("min", float("-inf")), rule.get("max", float("inf"))
        return bool(low <= value <= high)
    return bool(value == rule)
