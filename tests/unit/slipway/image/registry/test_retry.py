"""Retries: pauses grow, honour Retry-After, and end."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime, formatdate

import pytest

from slipway.image.registry import retry
from slipway.image.registry.retry import Backoff, Retries, asked_pause


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    slept: list[float] = []
    monkeypatch.setattr(retry.time, "sleep", slept.append)
    return slept


def test_pauses_double_with_jitter_up_to_the_longest(pauses: list[float]) -> None:
    backoff = Backoff(Retries(attempts=6, pause=1.0, longest=4.0, total=100))
    while backoff.wait():
        pass
    bounds = [1, 2, 4, 4, 4]
    assert len(pauses) == len(bounds)
    assert all(top / 2 <= pause <= top for pause, top in zip(pauses, bounds, strict=True))


def test_attempts_are_counted_in_all(pauses: list[float]) -> None:
    backoff = Backoff(Retries(attempts=1))
    assert not backoff.wait()
    assert pauses == []


def test_retry_after_is_waited_for(pauses: list[float]) -> None:
    Backoff(Retries(pause=0.1)).wait("7")
    assert pauses == [7.0]


def test_a_registry_that_asks_for_more_than_the_bound_is_not_waited_for(
    pauses: list[float],
) -> None:
    backoff = Backoff(Retries(total=30))
    assert backoff.wait("20")
    assert not backoff.wait("20")
    assert pauses == [20.0]


def test_retry_after_may_be_a_date() -> None:
    assert 28 < asked_pause(formatdate(time.time() + 30, usegmt=True)) <= 30
    assert asked_pause(format_datetime(datetime.now(UTC) - timedelta(hours=1))) == 0


@pytest.mark.parametrize("text", ["", "soon", "-3", "1.5", "٣", "Wed, 99 Foo 2026", "9" * 400])
def test_nonsense_in_retry_after_harms_nobody(text: str) -> None:
    assert asked_pause(text) in (0.0, float("9" * 9))
