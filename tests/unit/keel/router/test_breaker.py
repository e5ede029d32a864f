"""A breaker opens after failures in a row, probes once at a time, and closes after successes."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from keel.router.breaker import Breaker, BreakerConfig, State


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


CONFIG = BreakerConfig(failures=3, successes=2, open_for=10.0, window=60.0)


def made() -> tuple[Breaker, Clock, list[State]]:
    clock, states = Clock(), []
    breaker = Breaker(CONFIG, lambda: states.append(breaker._state), clock)
    return breaker, clock, states


def fail(breaker: Breaker, times: int = 1) -> None:
    for _ in range(times):
        permit = breaker.acquire()
        assert permit is not None
        breaker.fail(permit)


def succeed(breaker: Breaker) -> None:
    permit = breaker.acquire()
    assert permit is not None
    breaker.succeed(permit)


def test_a_success_ends_the_row() -> None:
    breaker, _, _ = made()
    fail(breaker, 2)
    succeed(breaker)
    fail(breaker, 2)
    assert breaker.state is State.CLOSED


def test_failures_far_apart_are_not_in_a_row() -> None:
    breaker, clock, _ = made()
    for _ in range(5):
        fail(breaker)
        clock.now += 61
    assert breaker.state is State.CLOSED
    assert breaker.failures == 1


def test_it_opens_probes_and_closes_and_tells_of_each_change() -> None:
    breaker, clock, states = made()
    fail(breaker, 3)
    assert breaker.acquire() is None
    clock.now = 9.9
    assert not breaker.admits
    clock.now = 10.0
    assert breaker.admits
    succeed(breaker)
    assert breaker.state is State.HALF_OPEN
    succeed(breaker)
    assert breaker.state is State.CLOSED
    assert states == [State.OPEN, State.HALF_OPEN, State.CLOSED]


def test_half_open_has_one_permit_at_a_time() -> None:
    breaker, clock, _ = made()
    fail(breaker, 3)
    clock.now = 10.0
    permit = breaker.acquire()
    assert permit is not None
    assert breaker.acquire() is None
    breaker.release(permit)
    assert breaker.acquire() is not None


def test_a_failed_probe_opens_it_again_for_the_whole_time() -> None:
    breaker, clock, _ = made()
    fail(breaker, 3)
    clock.now = 10.0
    fail(breaker)
    clock.now = 19.9
    assert breaker.acquire() is None
    clock.now = 20.0
    assert breaker.acquire() is not None


def test_requests_from_before_it_opened_say_nothing_about_the_probe() -> None:
    breaker, clock, _ = made()
    old = breaker.acquire()
    assert old is not None
    fail(breaker, 3)
    clock.now = 10.0
    probe = breaker.acquire()
    assert probe is not None
    breaker.succeed(old)
    breaker.fail(old)
    breaker.release(old)
    assert breaker.state is State.HALF_OPEN
    assert breaker.acquire() is None  # the probe is still out


def test_evidence_from_elsewhere_makes_it_probe_at_once() -> None:
    breaker, _, _ = made()
    fail(breaker, 3)
    breaker.recovered()
    assert breaker.state is State.HALF_OPEN
    breaker.recovered()
    assert breaker.state is State.HALF_OPEN


def test_disabled_it_never_opens() -> None:
    breaker = Breaker(BreakerConfig(failures=1, enabled=False))
    fail(breaker, 100)
    assert breaker.state is State.CLOSED


@given(st.lists(st.sampled_from(["acquire", "succeed", "fail", "release", "wait"]), max_size=60))
def test_whatever_happens_it_never_lets_two_probes_out_and_never_gets_stuck(
    steps: list[str],
) -> None:
    breaker, clock, _ = made()
    out: list[tuple[int, State]] = []
    for step in steps:
        if step == "acquire":
            state = breaker.state
            permit = breaker.acquire()
            if permit is not None:
                out.append((permit, state))
        elif step == "wait":
            clock.now += 5
        elif out:
            permit, _ = out.pop(0)
            getattr(breaker, step)(permit)
        probes = [p for p, state in out if state is State.HALF_OPEN and p == breaker._term]
        assert len(probes) <= 1
    for permit, _ in out:
        breaker.release(permit)
    clock.now += 11
    assert breaker.admits
