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


@torch.inference_mode()
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
    random = how.temperature > 0
    if not random.any():
        return chosen
    chosen = chosen.copy()
    numbers = uniform(how.seeds, how.steps)
    plain = (how.top_p >= 1) & (how.top_k < 0) & (how.min_p <= 0)
    # Each kind of row has its own way, whatever the others need: the order in which tokens are
    # summed decides which one a number means.
    for rows, draw in ((random & plain, _draw), (random & ~plain, _draw_kept)):
        which = np.flatnonzero(rows)
        if len(which):
            column = _Columns(how, which, logits.device)
            probs = logits[torch.from_numpy(which).to(logits.device)].float()
            probs = (probs / column(how.temperature).float()).softmax(-1)
            chosen[which] = draw(probs, column(numbers), column).cpu().numpy()
    return chosen


@dataclass(frozen=True)
class _Columns:
    """Picks the rows `which` of an array, [n, 1] float64 on the device."""

    how: SamplingBatch
    which: IntArray
    device: torch.device

    def __call__(self, values: FloatArray | IntArray) -> torch.Tensor:
        return torch.from_numpy(values[self.which].astype(np.float64)).to(self.device)[:, None]


def _draw(probs: torch.Tensor, u: torch.Tensor, _: _Columns) -> torch.Tensor:
    """Invert the cumulative distribution in order of token ids."""
    cumulative = probs.double().cumsum(-1)
    at = torch.searchsorted(cumulative, u * cumulative[:, -1:], right=True)
    return at.clamp_(max=probs.shape[1] - 1)[:, 0]


# Most distributions have all that the limits keep among their first tokens.
_FIRST = 256


def _draw_kept(probs: torch.Tensor, u: torch.Tensor, column: _Columns) -> torch.Tensor:
    """Invert the cumulative distribution of the kept tokens, in order of probability.

    Kept is what all limits keep: the `top_k` most probable tokens; those before whom less than
    `top_p` is summed; those at least `min_p` times as probable as the first.
    """
    how = column.how
    top_p, min_p, top_k = column(how.top_p), column(how.min_p), column(how.top_k)
    values, tokens = probs.topk(min(_FIRST, probs.shape[1]))
    first = values.double()
    enough = (top_k > 0) & (top_k <= first.shape[1])
    enough |= first[:, -1:] < min_p * first[:, :1]
    enough |= (top_p < 1) & (first.sum(-1, keepdim=True) >= top_p)
    if not enough.all() and first.shape[1] < probs.shape[1]:
        full, order = probs.sort(stable=True, dim=-1, descending=True)
        # Rows that had enough keep their first tokens, so their answer is the same here and there.
        width = first.shape[1]
        full[:, :width] = torch.where(enough, values, full[:, :width])
        order[:, :width] = torch.where(enough, tokens, order[:, :width])
        first, tokens = full.double(), order
    rank = torch.arange(first.shape[1], device=probs.device)[None]
    kept = first.cumsum(-1) - first < top_p
    kept &= (top_k < 0) | (rank < top_k)
    kept &= first >= min_p * first[:, :1]
    kept[:, 0] = True
    cumulative = (first * kept).cumsum(-1)
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
