"""Chunks of requests to the tensors of one forward pass."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from keel.cache.table import RequestTable
from keel.core import ForwardBatch
from keel.layers.sampler import SamplingBatch
from keel.scheduler.planner import Chunk


def order_chunks(chunks: Sequence[Chunk]) -> list[Chunk]:
    """Decodes first, as `ForwardBatch` wants them."""
    return sorted(chunks, key=lambda chunk: not chunk.request.is_decoding)


def forward_batch(
    chunks: Sequence[Chunk], table: RequestTable, device: torch.device
) -> ForwardBatch:
    """The batch of chunks that are in `order_chunks` order."""
    counts = np.array([chunk.count for chunk in chunks])
    starts = np.array([chunk.request.num_computed for chunk in chunks])
    ends = np.cumsum(counts)
    ids: list[int] = []
    for chunk in chunks:
        start = chunk.request.num_computed
        ids += chunk.request.ids[start : start + chunk.count]
    positions = np.arange(ends[-1]) + np.repeat(starts - (ends - counts), counts)
    wanted = np.array([chunk.reaches_end for chunk in chunks])

    def send(values: object) -> torch.Tensor:
        return torch.from_numpy(np.asarray(values, dtype=np.int64)).to(device)

    return ForwardBatch(
        input_ids=send(ids),
        positions=send(positions),
        out_slots=send(np.concatenate([chunk.slots for chunk in chunks])),
        query_lens=counts,
        seq_lens=starts + counts,
        num_decodes=sum(chunk.request.is_decoding for chunk in chunks),
        rows=np.array([chunk.request.row for chunk in chunks]),
        table=table.on_device(),
        logit_index=send(ends[wanted] - 1),
    )


def sampling_batch(chunks: Sequence[Chunk]) -> SamplingBatch:
    """How to sample after the chunks that reach the end of their request, in order."""
    requests = [chunk.request for chunk in chunks if chunk.reaches_end]
    params = [request.params for request in requests]
    forbidden = [
        (index, sorted(request.stop_ids))
        for index, request in enumerate(requests)
        if request.num_generated < request.params.min_new_tokens and request.stop_ids
    ]
    return SamplingBatch(
        temperature=np.array([one.temperature for one in params]),
        top_p=np.array([one.top_p for one in params]),
        top_k=np.array([one.top_k for one in params]),
        min_p=np.array([one.min_p for one in params]),
        seeds=np.array([one.seed or 0 for one in params], dtype=np.uint64),
        steps=np.array([request.num_generated for request in requests], dtype=np.uint64),
        forbidden=forbidden,
    )
