"""The noun between the rooms of the engine: what one forward pass computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

IntArray = npt.NDArray[np.int64]


@dataclass
class ForwardBatch:
    """New tokens of R requests, flattened to T, and where their keys and values lie.

    Requests with one new token and a computed prefix (decodes) come first; the others (whole
    prompts and chunks of prompts) follow. Sizes are on the host, so that no backend has to wait
    for the device to learn them.

    Args:
        input_ids: [T] int64, on the device.
        positions: [T] int64, on the device.
        out_slots: [T] int64, on the device: the slot each new token's keys and values go to.
        query_lens: [R] new tokens of each request; sums to T.
        seq_lens: [R] tokens of each request including the new ones.
        num_decodes: how many of the R requests are decodes.
        rows: [R] rows of `table`.
        table: [rows, context] int32, on the device: the slot of each position of a request; valid
            up to `seq_lens`.
        logit_index: [L] int64, on the device: tokens of the T whose logits are wanted.
        plan: what the attention backend prepared for this batch (`AttentionBackend.plan`).
    """

    input_ids: torch.Tensor
    positions: torch.Tensor
    out_slots: torch.Tensor
    query_lens: IntArray
    seq_lens: IntArray
    num_decodes: int
    rows: IntArray
    table: torch.Tensor
    logit_index: torch.Tensor
    plan: Any = None
