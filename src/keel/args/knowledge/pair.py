"""Whether a prefill and a decode engine can hand requests over, with the source of each rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from keel.args.knowledge.launch import Complaint, Launch

# How both sides move the cache within one host; each must know the same.
TRANSPORT = (
    "MC_INTRANODE_NVLINK",
    "MC_INTRA_NVLINK",
    "MC_FORCE_TCP",
    "MC_FORCE_MNNVL",
    "SGLANG_MOONCAKE_SEND_AUX_TCP",
    "SGLANG_DISAGG_STAGING_BUFFER",
)


@dataclass(frozen=True)
class Pairing:
    """One kind of mismatch between a prefill and a decode engine.

    Attributes:
        find: yields what does not match, of (prefill, decode); never raises.
        (others: as a `Constraint` has them)
    """

    name: str
    refuses: bool
    about: str
    source: str
    find: Callable[[Launch, Launch], Iterable[Complaint]]


def _model(prefill: Launch, decode: Launch) -> Iterator[Complaint]:
    if prefill.model and decode.model and prefill.model != decode.model:
        yield Complaint(
            f"the prefill engine loads {prefill.model}, the decode engine {decode.model}",
            "load one model on both sides",
        )
    elif prefill.vision_off != decode.vision_off:
        off = "prefill" if prefill.vision_off else "decode"
        yield Complaint(
            f"vision is off on the {off} engine only: the two load different models",
            "override vision_n_layers on both sides or on none",
        )


def _draft(prefill: Launch, decode: Launch) -> Iterator[Complaint]:
    if prefill.drafter != decode.drafter:
        yield Complaint(
            f"the prefill engine drafts with {prefill.drafter or 'nothing'}, the decode engine "
            f"with {decode.drafter or 'nothing'}: the draft's cache is part of what is sent",
            "choose one --speculative-algorithm on both sides",
        )
        return
    for name in ("speculative-dspark-block-size", "speculative-num-draft-tokens"):
        here, there = prefill.text(name), decode.text(name)
        if prefill.drafter and here and there and here != there:
            yield Complaint(
                f"--{name} is {here} on the prefill engine and {there} on the decode engine",
                "write one value on both sides",
            )


def _layout(prefill: Launch, decode: Launch) -> Iterator[Complaint]:
    """Attention tensor parallel sizes per rank, for caches that all CP ranks hold whole (MLA)."""
    if not (prefill.is_v4 and decode.is_v4):
        return  # other models: the receiving side may slice heads
    here, there = prefill.attention_tp, decode.attention_tp
    cp = prefill.prefill_cp
    if decode.prefill_cp > 1:
        yield Complaint(
            f"the decode engine has context parallelism of {decode.prefill_cp}",
            "drop it: decode engines take the cache of one CP rank",
        )
    elif cp > 1 and there not in (here, here * cp):
        yield Complaint(
            f"with prefill CP of {cp}, the prefill engine's attention TP is {here}; the decode "
            f"engine's is {there}, which is neither {here} nor {here * cp}",
            f"give the decode engine --dp-size so that tp/dp is {here}, or --tp-size {here * cp}",
        )


def _pages(prefill: Launch, decode: Launch) -> Iterator[Complaint]:
    for name, what in (
        ("page-size", "pages of the cache"),
        ("kv-cache-dtype", "type of the cache"),
        ("attention-backend", "attention backend, which decides the cache's layout"),
    ):
        here, there = prefill.text(name), decode.text(name)
        if here and there and here != there:
            yield Complaint(
                f"{what}: --{name} is {here} on the prefill engine and {there} on the decode "
                "engine",
                "write one value on both sides",
            )


def _transfer(prefill: Launch, decode: Launch) -> Iterator[Complaint]:
    here, there = prefill.transfer_backend, decode.transfer_backend
    if here != there:
        yield Complaint(
            f"the prefill engine sends by {here}, the decode engine receives by {there}",
            "write one --disaggregation-transfer-backend on both sides",
        )


def _transport(prefill: Launch, decode: Launch) -> Iterator[Complaint]:
    for name in TRANSPORT:
        here, there = prefill.env.get(name, ""), decode.env.get(name, "")
        if here != there:
            yield Complaint(
                f"{name} is {here or 'not set'} on the prefill engine and {there or 'not set'} on "
                "the decode engine",
                "set it alike on both sides",
            )


_CONN = "srt/disaggregation/common/conn.py of the V4.1 branch"

PAIRINGS: tuple[Pairing, ...] = (
    Pairing(
        "pair-model",
        True,
        "prefill and decode with different models, or vision on one side only",
        "archived P and D files of the b300 site: both have the override or none",
        _model,
    ),
    Pairing(
        "pair-draft",
        True,
        "prefill and decode with different drafting or draft blocks",
        f"{_CONN}: the handshake compares them",
        _draft,
    ),
    Pairing(
        "pair-layout",
        True,
        "prefill and decode whose attention ranks hold different parts of the cache",
        _CONN,
        _layout,
    ),
    Pairing(
        "pair-cache",
        True,
        "prefill and decode whose caches differ in page, type or layout",
        "SGLang's disaggregation: pages are copied as they lie",
        _pages,
    ),
    Pairing(
        "pair-transfer",
        True,
        "prefill and decode with different transfer backends",
        "SGLang's disaggregation: each backend has a handshake of its own",
        _transfer,
    ),
    Pairing(
        "pair-transport",
        False,
        "prefill and decode with different transport settings",
        "all PD files of the b300 site set MC_* and SEND_AUX_TCP on both sides",
        _transport,
    ),
)
