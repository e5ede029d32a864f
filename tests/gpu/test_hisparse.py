"""The swap-in on the device, equal to its oracle over many steps of a sequence's life."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from keel.kernels.cuda import hisparse
from keel.kernels.reference.hisparse import Residency, SwapIn
from keel.kernels.reference.hisparse import swap_in as oracle
from support.kernels import DEVICE

pytestmark = pytest.mark.gpu


def residency(reqs: int, hot: int, ctx: int, extra: int, gen: torch.Generator) -> Residency:
    width = hot + extra
    return Residency(
        tokens=torch.arange(width).repeat(reqs, 1).int(),
        lru=torch.arange(hot).repeat(reqs, 1).to(torch.int16),
        device_locs=torch.randperm(reqs * width, generator=gen).view(reqs, width).int(),
        host_locs=torch.randperm(reqs * ctx, generator=gen).view(reqs, ctx),
    )


def on_device(state: Residency) -> Residency:
    return Residency(*(getattr(state, n).to(DEVICE) for n in state.__dataclass_fields__))


def rows(n: int, nbytes: int, gen: torch.Generator) -> torch.Tensor:
    return torch.randint(0, 256, (n, nbytes), dtype=torch.uint8, generator=gen)


def padded_pages(n: int, gen: torch.Generator) -> torch.Tensor:
    pages = -(-n // hisparse.DSV4_PAGE_TOKENS)
    return rows(pages, hisparse.DSV4_PAGE_BYTES, gen)


def items(pool: torch.Tensor, places: list[int], padded: bool) -> torch.Tensor:
    """[places, bytes of an item]."""
    at = torch.tensor(places, dtype=torch.int64)
    if not padded:
        return pool[at]
    pages, offsets = pool[at // 64], (at % 64)[:, None]
    values = pages.gather(1, offsets * 576 + torch.arange(576))
    return torch.cat([values, pages.gather(1, 64 * 576 + offsets * 8 + torch.arange(8))], 1)


@pytest.mark.parametrize("block", [0, 16, 128])
@pytest.mark.parametrize("layout", ["mha", "mla", "dsv4"])
@pytest.mark.parametrize(("length_type", "index_type"), [(torch.int32, torch.int64),
                                                         (torch.int64, torch.int32)])  # fmt: skip
@pytest.mark.parametrize(("hot", "item_bytes"), [(512, 256), (1000, 16), (8192, 1152)])
def test_equal_to_the_oracle(
    block: int, layout: str, length_type: torch.dtype, index_type: torch.dtype, hot: int,
    item_bytes: int,
) -> None:  # fmt: skip
    gen = torch.Generator().manual_seed(hot + block)
    reqs, ctx, bs, extra = 5, 3 * hot, 4, 3
    k = min(512, hot) // max(block, 1)
    selected = k * max(block, 1)
    padded = layout == "dsv4"
    state = residency(reqs, hot, ctx, extra, gen)
    mine = on_device(state)
    places = reqs * (hot + extra)

    def buffers() -> tuple[torch.Tensor, torch.Tensor]:
        if padded:
            return padded_pages(reqs * ctx, gen).pin_memory(), padded_pages(places, gen).to(DEVICE)
        return (
            rows(reqs * ctx, item_bytes, gen).pin_memory(),
            rows(places, item_bytes, gen).to(DEVICE),
        )

    host_k, device_k = buffers()
    host_v, device_v = buffers() if layout == "mha" else (None, None)
    pools = hisparse.Pools(host_k, device_k, host_v, device_v, padded)
    other = replace(pools, device_k=device_k.clone(),
                    device_v=None if device_v is None else device_v.clone())  # fmt: skip
    plan = hisparse.MissPlan.allocate(bs, selected, DEVICE)
    out = torch.empty(bs, selected + 7, dtype=torch.int32, device=DEVICE)
    num_real = torch.tensor([3], dtype=torch.int32, device=DEVICE)
    lengths = torch.tensor([hot + 5, ctx - 10, hot - 7, ctx])
    req_ids = torch.tensor([4, 0, 2, 1])
    for _step in range(6):
        top = ctx // max(block, 1)
        if block:
            choice = torch.stack([torch.randperm(top, generator=gen)[:k] for _ in range(bs)])
            choice[torch.rand(bs, k, generator=gen) < 0.1] = -1
        else:  # Duplicates, -1, and positions past the end.
            choice = torch.randint(-1, top, (bs, k), generator=gen)
            choice[:, 1] = lengths - 1
        choice = choice.int()
        expected: SwapIn = oracle(choice, state, req_ids, lengths, 3, block)
        out.fill_(-9)
        hisparse.swap_in(
            choice.to(DEVICE), mine, pools, req_ids.to(index_type).to(DEVICE),
            lengths.to(length_type).to(DEVICE), num_real, out, block=block, plan=plan,
        )  # fmt: skip
        hisparse.replay(plan, other, num_real)
        torch.cuda.synchronize()
        assert torch.equal(out[:, :selected].cpu(), expected.locs)
        assert out[:, selected:].eq(-9).all()
        assert torch.equal(mine.lru.cpu(), state.lru)
        assert torch.equal(mine.tokens.cpu(), state.tokens)
        assert plan.count.tolist() == [len(m) for m in expected.misses]
        for b, misses in enumerate(expected.misses):
            recorded = zip(plan.source[b].tolist(), plan.target[b].tolist(), strict=True)
            assert list(recorded)[: len(misses)] == misses
        pairs = [m for misses in expected.misses for m in misses]
        sources, targets = [p[0] for p in pairs], [p[1] for p in pairs]
        for host, device in (
            (host_k, pools.device_k), (host_k, other.device_k),
            (host_v, pools.device_v), (host_v, other.device_v),
        ):  # fmt: skip
            if host is not None and device is not None:
                copied = items(device.cpu(), targets, padded)
                assert torch.equal(copied, items(host, sources, padded))
        lengths = (lengths + 1).clamp(max=ctx)


def test_skipping_the_copy_changes_only_the_bytes() -> None:
    gen = torch.Generator().manual_seed(0)
    state = residency(1, 64, 400, 1, gen)
    mine = on_device(state)
    device = torch.zeros(65, 64, dtype=torch.uint8, device=DEVICE)
    pools = hisparse.Pools(rows(400, 64, gen).pin_memory(), device)
    out = torch.empty(1, 32, dtype=torch.int32, device=DEVICE)
    choice = torch.arange(200, 232)[None].int()
    expected = oracle(choice, state, torch.zeros(1), torch.tensor([400]), 1)
    hisparse.swap_in(
        choice.to(DEVICE), mine, pools, torch.zeros(1, dtype=torch.int64, device=DEVICE),
        torch.tensor([400], device=DEVICE), torch.ones(1, dtype=torch.int32, device=DEVICE), out,
        skip_copy=True,
    )  # fmt: skip
    assert torch.equal(out.cpu(), expected.locs)
    assert device.eq(0).all()


def test_a_graph_replays_with_what_is_there_then() -> None:
    gen = torch.Generator().manual_seed(1)
    state = residency(2, 256, 1000, 1, gen)
    mine = on_device(state)
    device = torch.zeros(2 * 257, 64, dtype=torch.uint8, device=DEVICE)
    pools = hisparse.Pools(rows(2000, 64, gen).pin_memory(), device)
    out = torch.empty(2, 128, dtype=torch.int32, device=DEVICE)
    choice = torch.full((2, 128), -1, dtype=torch.int32, device=DEVICE)
    lengths = torch.tensor([900, 1000], device=DEVICE)
    req_ids, real = torch.tensor([0, 1], device=DEVICE), torch.tensor([2], device=DEVICE).int()
    hisparse.swap_in(choice, mine, pools, req_ids, lengths, real, out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        hisparse.swap_in(choice, mine, pools, req_ids, lengths, real, out)
    for _ in range(5):
        fresh = torch.randint(0, 1000, (2, 128), generator=gen).int()
        choice.copy_(fresh)
        graph.replay()
        expected = oracle(fresh, state, req_ids.cpu(), lengths.cpu(), 2)
        assert torch.equal(out.cpu(), expected.locs)
        assert torch.equal(mine.lru.cpu(), state.lru)
