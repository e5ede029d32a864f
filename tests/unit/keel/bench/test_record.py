"""Figures follow from what clients saw, and from nothing else."""

from __future__ import annotations

import pytest

from keel.bench.record import Record, figures, percentile, spread


def test_figures_of_two_requests_and_a_failed_one() -> None:
    one = Record(10.0, [10.5, 10.6, 10.8], prompt_tokens=100, output_tokens=3, cached_tokens=60)
    two = Record(11.0, [12.0, 13.0], prompt_tokens=20, output_tokens=5)
    found = figures([one, two, Record(9.0, error="HTTP 503")])
    assert (found.completed, found.failed) == (2, 1)
    assert found.duration_s == pytest.approx(4.0)  # from the first sending to the last token
    assert found.cache_hit_rate == pytest.approx(0.5)
    assert found.output_tokens_per_s == pytest.approx(2.0)
    assert found.ttft_ms.mean == pytest.approx(750.0)
    # 300 ms over two tokens after the first; 1000 ms over four, which came as one piece.
    assert sorted((found.tpot_ms.p50, found.tpot_ms.max)) == pytest.approx([200.0, 250.0])
    assert found.itl_ms.max == pytest.approx(1000.0)
    assert found.e2e_ms.max == pytest.approx(2000.0)


def test_nothing_answered_gives_zeros() -> None:
    found = figures([Record(1.0, error="HTTP 500")])
    assert (found.completed, found.failed, found.requests_per_s) == (0, 1, 0.0)
    assert found.ttft_ms.p99 == 0.0


def test_percentiles_lie_between_neighbours() -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.5
    assert percentile([7.0], 0.99) == 7.0
    assert spread([0.001 * n for n in range(101)]).p90 == pytest.approx(90.0)
