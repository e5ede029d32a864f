"""Sampling: what is kept, with which probability, and from whose randomness."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from keel.layers.sampler import SamplingBatch, sample, uniform


def batch(count: int, **changes: Any) -> SamplingBatch:
    fields: dict[str, Any] = {
        "temperature": np.ones(count),
        "top_p": np.ones(count),
        "top_k": np.full(count, -1),
        "min_p": np.zeros(count),
        "seeds": np.arange(count, dtype=np.uint64),
        "steps": np.zeros(count, dtype=np.uint64),
        **changes,
    }
    return SamplingBatch(**fields)


def test_temperature_zero_takes_the_largest() -> None:
    logits = torch.randn(5, 1000, generator=torch.Generator().manual_seed(0))
    chosen = sample(logits.clone(), batch(5, temperature=np.zeros(5)))
    assert chosen.tolist() == logits.argmax(-1).tolist()


@pytest.mark.parametrize("vocab", [40, 2000])
@pytest.mark.parametrize(
    ("how", "kept"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"top_k": 2}, [0, 1]),
        ({"top_p": 0.75}, [0, 1]),
        ({"top_p": 0.81}, [0, 1, 2]),
        ({"min_p": 0.3}, [0, 1]),
        ({"top_k": 3, "top_p": 0.99, "min_p": 0.1}, [0, 1, 2]),
    ],
)
def test_frequencies_are_the_probabilities_of_what_is_kept(
    how: dict[str, float], kept: list[int], vocab: int
) -> None:
    probs = torch.tensor([0.5, 0.3, 0.1, 0.06, 0.04])
    place = torch.randperm(vocab, generator=torch.Generator().manual_seed(1))[:5]
    row = torch.full((vocab,), -40.0)
    row[place] = probs.log()
    count = 4000
    changes = {name: np.full(count, value) for name, value in how.items()}
    chosen = sample(row.expand(count, vocab).clone(), batch(count, **changes))
    expected = probs[kept] / probs[kept].sum()
    seen = torch.tensor([(chosen == int(place[index])).mean() for index in kept])
    assert seen.sum().item() == pytest.approx(1)
    # Four standard deviations of a binomial with 4000 draws.
    assert torch.all(
        (seen - expected).abs() < 4 * (expected * (1 - expected) / count).sqrt() + 1e-9
    )


def test_a_wide_nucleus_is_exact_beyond_the_first_tokens() -> None:
    count, vocab = 3000, 1000  # uniform: 256 tokens hold only a quarter of the mass
    chosen = sample(torch.zeros(count, vocab), batch(count, top_p=np.full(count, 0.5)))
    distinct = len(set(chosen.tolist()))
    assert 450 <= distinct <= 501


def test_a_row_depends_on_its_seed_and_step_only() -> None:
    logits = torch.randn(1, 500, generator=torch.Generator().manual_seed(2))
    alone = sample(logits.clone(), batch(1, seeds=np.array([77], dtype=np.uint64)))[0]
    for top_p in (1.0, 0.5):
        others = batch(
            4,
            seeds=np.array([1, 77, 3, 4], dtype=np.uint64),
            top_p=np.array([top_p, 1.0, top_p, 1.0]),
            temperature=np.array([0.0, 1.0, 2.0, 1.0]),
        )
        assert sample(logits.repeat(4, 1), others)[1] == alone


def test_uniform_numbers_are_uniform_and_differ_by_seed_and_step() -> None:
    seeds, steps = np.divmod(np.arange(20000, dtype=np.uint64), np.uint64(200))
    numbers = uniform(seeds, steps)
    assert len(set(numbers.tolist())) == 20000
    assert 0 <= numbers.min() < numbers.max() < 1
    counts, _ = np.histogram(numbers, bins=20, range=(0, 1))
    assert abs(counts - 1000).max() < 5 * 1000**0.5


def test_forbidden_tokens_are_never_chosen() -> None:
    logits = torch.tensor([[5.0, 4.0, 0.0]])
    assert sample(logits.clone(), batch(1, temperature=np.zeros(1), forbidden=[(0, [0])]))[0] == 1
