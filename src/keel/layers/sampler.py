"""Logits to tokens: temperature, top-k, top-p, min-p, from randomness that each request owns."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from keel.core import IntArray

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SamplingBatch:
    """How to choose, for L rows of logits.

    Args:
        temperature: [L]; 0 takes the largest logit, whatever the rest says.
        top_p, min_p: [L], in 0..1.
        top_k: [L]; -1 is all.
        seeds, steps: [L] uint64; together they decide a row's random number, so an answer does
            not depend on which other requests share its batches.
        forbidden: (row, tokens that must not be chosen).
    """

    temperature: FloatArray
    top_p: FloatArray
    top_k: IntArray
    min_p: FloatArray
    seeds: npt.NDArray[np.uint64]
    steps: npt.NDArray[np.uint64]
    forbidden: list[tuple[int, list[int]]] = field(default_factory=list)


def sample(logits: torch.Tensor, how: SamplingBatch) -> IntArray:
    """Choose a token for each row.

    Args:
        logits: [L, vocab_size], any float dtype; may be written to.

    Returns:
        [L] token ids, on the host.
    """
    for row, tokens in how.forbidden:
        logits[row, tokens] = -torch.inf
    chosen: IntArray = logits.argmax(-1).cpu().numpy()
    random = np.flatnonzero(how.temperature > 0)
    if len(random):
        rows = logits[torch.from_numpy(random).to(logits.device)].float()
        drawn = _draw(rows, how, random).cpu().numpy()
        chosen = chosen.copy()
        chosen[random] = drawn
    return chosen


# Most distributions have all that top-p wants among their first tokens.
_FIRST = 256


def _draw(logits: torch.Tensor, how: SamplingBatch, which: IntArray) -> torch.Tensor:
    """Invert the cumulative distribution of the kept tokens at each row's random number."""

    def column(values: npt.NDArray[np.float64] | IntArray) -> torch.Tensor:
        return torch.from_numpy(values[which]).to(logits.device)[:, None]

    vocab = logits.shape[1]
    probs = (logits / column(how.temperature).float()).softmax(-1)
    u = column(uniform(how.seeds, how.steps)).double()
    top_p, top_k, min_p = how.top_p[which], how.top_k[which], how.min_p[which]
    if (top_p >= 1).all() and (top_k < 0).all() and (min_p <= 0).all():
        cumulative = probs.double().cumsum(-1)
        at = torch.searchsorted(cumulative, u * cumulative[:, -1:], right=True)
        return at.clamp_(max=vocab - 1)[:, 0]
    first = min(_FIRST, vocab)
    sorted_probs, tokens = probs.topk(first)
    enough = (top_k > 0) & (top_k <= first)
    enough |= (min_p > 0) & (
        sorted_probs[:, -1] < column(how.min_p)[:, 0] * sorted_probs[:, 0]
    ).cpu().numpy()
    enough |= (top_p < 1) & (sorted_probs.sum(-1).cpu().numpy() >= top_p + 1e-4)
    if not enough.all():
        sorted_probs, tokens = probs.sort(stable=True, dim=-1, descending=True)
    sorted_probs = sorted_probs.double()
    rank = torch.arange(sorted_probs.shape[1], device=logits.device)[None]
    before = sorted_probs.cumsum(-1) - sorted_probs
    kept = before < column(how.top_p)
    limit = np.where(top_k > 0, top_k, vocab)
    kept &= rank < torch.from_numpy(limit).to(logits.device)[:, None]
    kept &= sorted_probs >= column(how.min_p) * sorted_probs[:, :1]
    kept[:, 0] = True
    cumulative = (sorted_probs * kept).cumsum(-1)
    at = torch.searchsorted(cumulative, u * cumulative[:, -1:], right=True)
    at = torch.minimum(at, kept.sum(-1, keepdim=True) - 1)
    return tokens.gather(1, at)[:, 0]


def uniform(seeds: npt.NDArray[np.uint64], steps: npt.NDArray[np.uint64]) -> FloatArray:
    """A number in [0, 1) for each seed and step (SplitMix64, Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        z = _mix(seeds) + (steps + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        bits = _mix(z) >> np.uint64(11)
    return bits.astype(np.float64) * 2.0**-53


def _mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
