"""What one engine's flags exclude and need, with the source of each piece of knowledge.

Every constraint speaks of combinations that each flag alone does not forbid. `keel.args.parse`
refuses what the engine of this project refuses; these hold for the ecosystem's commands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from keel.args.knowledge.launch import Complaint, Launch


@dataclass(frozen=True)
class Constraint:
    """One kind of contradiction within a command.

    Attributes:
        name: stable; people and scripts refer to it.
        refuses: the engine cannot work so; otherwise it is unwise, or something has no effect.
        about: one line for the list of rules.
        source: where the knowledge comes from.
        find: yields what is wrong; never raises.
    """

    name: str
    refuses: bool
    about: str
    source: str
    find: Callable[[Launch], Iterable[Complaint]]


VERIFY_MODES = ("static", "cap-accept", "compact")
ENGRAM_HOST_TABLE = "SGLANG_ENABLE_DSV41_ENGRAM_HOST_TABLE"
MOONCAKE_CONFIG = "SGLANG_HICACHE_MOONCAKE_CONFIG_PATH"


def verify_mode(launch: Launch) -> str:
    """How drafts are verified; the engine's default is `static`."""
    return launch.env.get("SGLANG_RAGGED_VERIFY_MODE") or "static"


def has_store(launch: Launch) -> bool:
    """Whether a third cache tier behind the host's memory is asked for."""
    return launch.has("hicache-storage-backend")


def _sizes(launch: Launch) -> Iterator[Complaint]:
    tp = launch.tp
    named = (
        ("attention data parallel size", launch.attention_dp),
        ("expert parallel size", launch.number("ep-size", 1)),
        ("attention context parallel size", launch.number("attn-cp-size", 1)),
        ("decode context parallel size", launch.number("dcp-size", 1)),
    )
    for what, size in named:
        if size > 1 and tp % size:
            yield Complaint(
                f"{what} {size} does not divide the tensor parallel size {tp}",
                f"choose a divisor of {tp}; expert parallelism usually takes all {tp}",
            )


def _dp_attention(launch: Launch) -> Iterator[Complaint]:
    on = launch.has("enable-dp-attention") or launch.attention_dp > 1
    if launch.has("enable-dp-lm-head") and not on:
        yield Complaint(
            "--enable-dp-lm-head without DP attention: no effect",
            "add --dp-size N --enable-dp-attention, or drop --enable-dp-lm-head",
        )
    elif launch.has("enable-dp-attention") and launch.attention_dp == 1:
        yield Complaint(
            "--enable-dp-attention with one group: there is no --dp-size above 1",
            "add --dp-size N, or drop --enable-dp-attention",
        )


def _lm_head(launch: Launch) -> Iterator[Complaint]:
    dspark = launch.drafter == "DSPARK"
    if dspark and launch.attention_dp > 1 and not launch.has("enable-dp-lm-head"):
        yield Complaint(
            "DSpark with DP attention and without --enable-dp-lm-head: every draft step gathers "
            "the hidden states of all groups for the head",
            "add --enable-dp-lm-head",
        )


def _replay_dp(launch: Launch) -> Iterator[Complaint]:
    if launch.has("enable-decoder-swa-bounded-replay") and launch.attention_dp > 1:
        yield Complaint(
            "--enable-decoder-swa-bounded-replay with DP attention: the gathered inputs of all "
            "groups cannot be cut to one request's last window",
            "drop one of the two",
        )


def _cp_dspark_replay(launch: Launch) -> Iterator[Complaint]:
    if (
        launch.has("enable-prefill-cp")
        and launch.drafter == "DSPARK"
        and launch.has("enable-decoder-swa-bounded-replay")
    ):
        yield Complaint(
            "--enable-prefill-cp, DSPARK and --enable-decoder-swa-bounded-replay together crash "
            "the engine; any two of them work",
            "drop --enable-decoder-swa-bounded-replay",
        )


def _encoder_replay(launch: Launch) -> Iterator[Complaint]:
    if not launch.has("enable-encoder-swa-bounded-replay"):
        return
    excluded = (
        ("DP attention", launch.attention_dp > 1),
        ("context parallelism", launch.prefill_cp > 1),
        ("prefill/decode disaggregation", bool(launch.role)),
        ("speculative decoding", bool(launch.drafter)),
        ("--enable-mixed-chunk", launch.has("enable-mixed-chunk")),
        ("--enable-lora", launch.has("enable-lora")),
        ("--enable-session-radix-cache", launch.has("enable-session-radix-cache")),
        ("--enable-unified-memory", launch.has("enable-unified-memory")),
        ("an external cache linker", launch.has("enable-unified-cache-external-linker")),
    )
    for what, there in excluded:
        if there:
            yield Complaint(
                f"--enable-encoder-swa-bounded-replay does not go with {what}", "drop one of them"
            )
    if launch.number("max-running-requests", 0) <= 0:
        yield Complaint(
            "--enable-encoder-swa-bounded-replay needs an explicit --max-running-requests",
            "add --max-running-requests N",
        )
    if launch.number("chunked-prefill-size", 0) < 128:
        yield Complaint(
            "--enable-encoder-swa-bounded-replay needs --chunked-prefill-size of at least 128",
            "add --chunked-prefill-size 4096",
        )
    if launch.model.startswith("/") and not launch.is_v41:
        yield Complaint(
            f"--enable-encoder-swa-bounded-replay is for DeepSeek V4.1, not {launch.model}",
            "drop it",
        )


def _prefill_cp(launch: Launch) -> Iterator[Complaint]:
    if not launch.has("enable-prefill-cp"):
        if launch.has("cp-strategy"):
            yield Complaint(
                "--cp-strategy without --enable-prefill-cp has no effect",
                "add --enable-prefill-cp, or drop --cp-strategy",
            )
        return
    if not launch.has("cp-strategy"):
        yield Complaint(
            "--enable-prefill-cp without --cp-strategy: the engine refuses it",
            "add --cp-strategy interleave",
        )
    elif launch.is_v4 and launch.text("cp-strategy") != "interleave":
        yield Complaint(
            f"--cp-strategy {launch.text('cp-strategy')}: DeepSeek V4 on GPUs orders its cache by "
            "interleave only",
            "write --cp-strategy interleave",
        )
    if launch.attention_dp > 1:
        yield Complaint(
            f"--enable-prefill-cp with DP attention of {launch.attention_dp} groups: a prompt is "
            "either spread over the ranks or given to one group",
            "drop --enable-prefill-cp, or --enable-dp-attention with its size",
        )
    if launch.number("dcp-size", 1) > 1:
        yield Complaint("--enable-prefill-cp with --dcp-size above 1", "drop one of the two")
    if launch.is_v4 and launch.tp > 8:
        yield Complaint(
            f"--enable-prefill-cp with --tp-size {launch.tp}: prompts are shared within one host",
            "keep --tp-size at 8 or below",
        )
    graph = launch.text("cuda-graph-backend-prefill")
    if launch.is_v41 and not launch.vision_off and graph not in ("", "disabled"):
        yield Complaint(
            f"--cuda-graph-backend-prefill {graph}: with images, prefill CP runs without a graph",
            "drop it, or switch vision off",
        )


def _verify(launch: Launch) -> Iterator[Complaint]:
    mode = launch.env.get("SGLANG_RAGGED_VERIFY_MODE", "")
    if mode and "<" not in mode and mode not in VERIFY_MODES:
        yield Complaint(
            f"SGLANG_RAGGED_VERIFY_MODE={mode}: none of {', '.join(VERIFY_MODES)}",
            "write SGLANG_RAGGED_VERIFY_MODE=static",
        )


def _draft_flags(launch: Launch) -> Iterator[Complaint]:
    for name in launch.flags:
        for algorithm in ("dspark", "dflash", "ngram"):
            if name.startswith(f"speculative-{algorithm}-") and launch.drafter != algorithm.upper():
                now = launch.drafter or "no speculative algorithm"
                yield Complaint(
                    f"--{name} has no effect: the command has {now}",
                    f"add --speculative-algorithm {algorithm.upper()}, or drop the flag",
                )


def _dspark_pd(launch: Launch) -> Iterator[Complaint]:
    if not (launch.role and launch.drafter == "DSPARK" and launch.is_v41):
        return
    if verify_mode(launch) in VERIFY_MODES and verify_mode(launch) != "static":
        yield Complaint(
            f"DSpark with disaggregation needs static verification, not {verify_mode(launch)}",
            "set SGLANG_RAGGED_VERIFY_MODE=static on both sides",
        )
    if launch.transfer_backend not in ("mooncake", "mooncake_tcp"):
        yield Complaint(
            f"DSpark with disaggregation moves its draft cache by mooncake only, not "
            f"{launch.transfer_backend}",
            "write --disaggregation-transfer-backend mooncake on both sides",
        )
    if launch.number("dcp-size", 1) > 1:
        yield Complaint("DSpark with disaggregation needs --dcp-size 1", "drop --dcp-size")
    if launch.role == "decode" and launch.prefill_cp > 1:
        yield Complaint(
            "DSpark with disaggregation: a decode engine cannot have context parallelism",
            "drop --enable-prefill-cp and --attn-cp-size from the decode engine",
        )


def _v41(launch: Launch) -> Iterator[Complaint]:
    if not launch.is_v41:
        return
    excluded = (
        (f"--speculative-algorithm {launch.drafter}", launch.drafter not in ("", "DSPARK")),
        ("--enable-hisparse", launch.has("enable-hisparse")),
        ("--enable-two-batch-overlap", launch.has("enable-two-batch-overlap")),
        ("pipeline parallelism", launch.pp > 1),
    )
    for what, there in excluded:
        if there:
            yield Complaint(f"DeepSeek V4.1 does not run with {what}", "drop it")


def _dsv4_trtllm(launch: Launch) -> Iterator[Complaint]:
    if launch.text("dsv4-attn-backend") != "trtllm":
        return
    excluded = (
        ("prefill context parallelism", launch.prefill_cp > 1),
        ("decode context parallelism", launch.number("dcp-size", 1) > 1),
        ("prefill/decode disaggregation", bool(launch.role)),
        ("HiSparse", launch.has("enable-hisparse")),
        ("bounded replay", launch.has("enable-decoder-swa-bounded-replay")),
        (
            "a cache of another type than fp8_e4m3",
            launch.text("kv-cache-dtype", "auto") not in ("auto", "fp8_e4m3"),
        ),
    )
    for what, there in excluded:
        if there:
            yield Complaint(
                f"--dsv4-attn-backend trtllm keeps its cache in a form of its own and does not go "
                f"with {what}",
                "drop one of them",
            )


def _engram(launch: Launch) -> Iterator[Complaint]:
    if (
        launch.is_v41
        and launch.tp * launch.pp <= 2
        and "<" not in launch.env.get(ENGRAM_HOST_TABLE, "")
        and not launch.switched(ENGRAM_HOST_TABLE)
    ):
        yield Complaint(
            f"DeepSeek V4.1 on {launch.tp * launch.pp} GPU(s): the weights fit only with the "
            "engram table in the host's memory",
            f"set {ENGRAM_HOST_TABLE}=1, or take more GPUs",
        )


def _cache_tiers(launch: Launch) -> Iterator[Complaint]:
    if not launch.has("enable-hierarchical-cache"):
        return
    if launch.has("disable-radix-cache"):
        yield Complaint(
            "--enable-hierarchical-cache with --disable-radix-cache: the tiers hold what the radix "
            "cache indexes",
            "drop one of the two",
        )
    elif launch.role == "decode" and not launch.has("disaggregation-decode-enable-radix-cache"):
        yield Complaint(
            "--enable-hierarchical-cache on a decode engine, whose radix cache is off",
            "drop the hicache flags from the decode engine; they belong to its prefill engines",
        )
    for other in ("enable-lmcache", "enable-unified-cache-external-linker"):
        if launch.has(other):
            yield Complaint(
                f"--enable-hierarchical-cache with --{other}: two second tiers for one cache",
                "drop one of the two",
            )


def _cache_parts(launch: Launch) -> Iterator[Complaint]:
    if launch.has("enable-hierarchical-cache"):
        return
    if launch.has("disaggregation-decode-enable-offload-kvcache"):
        return  # a decode engine writes to the store without the middle tier
    loose = [f"--{name}" for name in launch.flags if name.startswith("hicache-")]
    if loose:
        yield Complaint(
            f"{', '.join(loose)} without --enable-hierarchical-cache: no effect",
            "add --enable-hierarchical-cache, or drop them",
        )


def _cache_layout(launch: Launch) -> Iterator[Complaint]:
    layout, mover = launch.text("hicache-mem-layout"), launch.text("hicache-io-backend")
    needs = {"page_first_direct": "direct", "page_unified": "kernel", "page_first": "kernel"}
    wanted = needs.get(layout)
    if wanted and mover and mover != wanted and mover in ("direct", "kernel"):
        yield Complaint(
            f"--hicache-mem-layout {layout} cannot be moved by --hicache-io-backend {mover}; the "
            "engine would take another than the one written",
            f"write --hicache-io-backend {wanted}, or another layout",
        )
    if launch.text("hicache-storage-backend") == "mooncake" and layout == "layer_first":
        yield Complaint(
            "--hicache-mem-layout layer_first: the mooncake store takes pages in one piece",
            "write page_first with the kernel backend, or page_first_direct with direct",
        )


def _store(launch: Launch) -> Iterator[Complaint]:
    if launch.text("hicache-storage-backend") != "mooncake":
        return
    ways = ("MOONCAKE_MASTER", "MOONCAKE_CLIENT", MOONCAKE_CONFIG, "MOONCAKE_CONFIG_PATH")
    if not any(launch.env.get(name) for name in ways) and not launch.has(
        "hicache-storage-backend-extra-config"
    ):
        yield Complaint(
            "--hicache-storage-backend mooncake, and nothing says where the store's master is",
            f"set MOONCAKE_MASTER=HOST:PORT, or {MOONCAKE_CONFIG} to its JSON file",
        )
    if launch.env.get("MOONCAKE_MASTER") and launch.env.get(MOONCAKE_CONFIG):
        yield Complaint(
            f"MOONCAKE_MASTER and {MOONCAKE_CONFIG} both say where the store is; only the file is "
            "read",
            "drop one of the two",
        )


def _idle_check(launch: Launch) -> Iterator[Complaint]:
    if launch.program == "sglang" and launch.prefill_cp > 1 and has_store(launch):
        yield Complaint(
            "prefill CP with a hicache store: where the engine's idle check counts each rank's own "
            "cache queue, a health check that meets a draining queue stops all ranks for good",
            "run a build whose idle check looks only at what all ranks share "
            "(is_sched_idle_cp_symmetric), and say so by its tag",
        )


def _hisparse(launch: Launch) -> Iterator[Complaint]:
    shared = not launch.has("disable-radix-cache") and launch.role != "decode"
    if launch.has("enable-hisparse") and shared:
        yield Complaint(
            "--enable-hisparse with the radix cache: a page that lies on the host cannot be shared",
            "add --disable-radix-cache",
        )
    for other in ("disaggregation-decode-enable-radix-cache", "enable-mixed-chunk"):
        if launch.has("enable-hisparse") and launch.has(other):
            yield Complaint(f"--enable-hisparse does not go with --{other}", f"drop --{other}")


def _text_only(launch: Launch) -> Iterator[Complaint]:
    if launch.has("language-model-only") and launch.role and launch.model and not launch.is_v41:
        yield Complaint(
            f"--language-model-only with disaggregation is for DeepSeek V4.1, not {launch.model}",
            "drop --language-model-only",
        )


def _role_flags(launch: Launch) -> Iterator[Complaint]:
    mode = launch.text("disaggregation-mode")
    if mode not in ("", "null", "prefill", "decode") and "<" not in mode:
        yield Complaint(
            f"--disaggregation-mode {mode}: none of null, prefill, decode", "write one of these"
        )
    elif not launch.role:
        loose = [f"--{name}" for name in launch.flags if name.startswith("disaggregation-")]
        loose = [name for name in loose if name != "--disaggregation-mode"]
        if loose:
            yield Complaint(
                f"{', '.join(loose)} without --disaggregation-mode: no effect",
                "add --disaggregation-mode prefill or decode, or drop them",
            )
    else:
        other = "decode" if launch.role == "prefill" else "prefill"
        wrong = [name for name in launch.flags if name.startswith(f"disaggregation-{other}-")]
        if wrong and launch.role == "prefill" and launch.program == "sglang":
            wrong = [name for name in wrong if not name.endswith(("-policy", "-tp", "-dp"))]
        if wrong:
            yield Complaint(
                f"--{wrong[0]} on a {launch.role} engine: it steers the other side",
                f"move it to the {other} engine",
            )
    if launch.role == "prefill" and launch.transfer_backend == "fake":
        yield Complaint(
            "a prefill engine with --disaggregation-transfer-backend fake sends nothing",
            "write --disaggregation-transfer-backend mooncake",
        )


def _role_switch(launch: Launch) -> Iterator[Complaint]:
    if not launch.has("enable-pd-role-switch"):
        return
    excluded = (
        ("expert parallelism", launch.number("ep-size", 1) > 1),
        ("pipeline parallelism", launch.pp > 1),
        ("decode context parallelism", launch.number("dcp-size", 1) > 1),
        ("speculative decoding", bool(launch.drafter)),
    )
    for what, there in excluded:
        if there:
            yield Complaint(
                f"--enable-pd-role-switch does not rebuild what {what} keeps", "drop one of them"
            )


_UPSTREAM = "SGLang 0.5.23, srt/arg_groups"
_HOOK = "the V4.1 branch's deepseek_v4_hook.py"

# Whether it holds depends on the build, which a file can also change by a mount.
IDLE_CHECK = Constraint(
    "cp-idle-check",
    False,
    "prefill CP with a hicache store on a build that may deadlock in its health check",
    "the V4.1 branch's scheduler.py; the patch that the b300 site mounts",
    _idle_check,
)

CONSTRAINTS: tuple[Constraint, ...] = (
    Constraint(
        "parallel-sizes",
        True,
        "a parallel size that does not divide the tensor parallel size",
        f"{_UPSTREAM}/parallel_hook.py",
        _sizes,
    ),
    Constraint(
        "dp-attention",
        False,
        "DP attention's flags without each other",
        f"{_UPSTREAM}/parallel_hook.py",
        _dp_attention,
    ),
    Constraint(
        "dspark-lm-head",
        False,
        "DSpark under DP attention without a head of each group's own",
        "all nine DP services of the b300 site have it",
        _lm_head,
    ),
    Constraint(
        "replay-dp",
        True,
        "bounded replay with DP attention",
        f"{_HOOK}; the comment of the b300 site's dp2",
        _replay_dp,
    ),
    Constraint(
        "cp-dspark-replay",
        True,
        "prefill CP, DSpark and bounded replay together",
        "measured on the b300 site (comment of its cp8); with vision also refused by "
        "deepseek_v4_hook.py",
        _cp_dspark_replay,
    ),
    Constraint(
        "encoder-replay",
        True,
        "encoder replay with what it excludes, or without what it needs",
        _HOOK,
        _encoder_replay,
    ),
    Constraint(
        "prefill-cp",
        True,
        "prefill CP with what it excludes, or without its strategy",
        f"{_HOOK}; {_UPSTREAM}/parallel_hook.py",
        _prefill_cp,
    ),
    Constraint(
        "verify-mode",
        True,
        "a way to verify drafts that does not exist",
        "SGLang 0.5.23, srt/speculative/ragged_verify.py",
        _verify,
    ),
    Constraint(
        "draft-flags",
        False,
        "flags of a speculative algorithm that is not chosen",
        f"{_UPSTREAM}/speculative_hook.py",
        _draft_flags,
    ),
    Constraint(
        "dspark-pd",
        True,
        "DSpark with disaggregation, and not as both sides can do it",
        _HOOK,
        _dspark_pd,
    ),
    Constraint("v41-features", True, "what DeepSeek V4.1 does not run with", _HOOK, _v41),
    Constraint(
        "dsv4-trtllm",
        True,
        "the trtllm attention of DeepSeek V4 with what it excludes",
        f"{_UPSTREAM}/deepseek_v4_hook.py",
        _dsv4_trtllm,
    ),
    Constraint(
        "engram-table",
        True,
        "DeepSeek V4.1 on two GPUs without its table on the host",
        "measured on the b300 site (comment of its cp2x4)",
        _engram,
    ),
    Constraint(
        "cache-tiers",
        True,
        "a hierarchical cache where there is nothing to tier",
        f"{_UPSTREAM}/kv_cache_hook.py and pd_disaggregation_hook.py",
        _cache_tiers,
    ),
    Constraint(
        "cache-parts",
        False,
        "hicache flags without the hierarchical cache",
        f"{_UPSTREAM}/hicache_hook.py",
        _cache_parts,
    ),
    Constraint(
        "cache-layout",
        False,
        "a host layout that its mover or its store cannot take",
        f"{_UPSTREAM}/hicache_hook.py",
        _cache_layout,
    ),
    Constraint(
        "cache-store",
        True,
        "a mooncake store of which nothing says where it is",
        "SGLang's mooncake_store: configuration from the environment or a JSON file",
        _store,
    ),
    IDLE_CHECK,
    Constraint(
        "hisparse",
        True,
        "HiSparse with a radix cache",
        f"{_UPSTREAM}/hisparse_hook.py",
        _hisparse,
    ),
    Constraint(
        "text-only",
        True,
        "--language-model-only with disaggregation, for a model that cannot",
        f"{_UPSTREAM}/model_hook.py",
        _text_only,
    ),
    Constraint(
        "role-flags",
        False,
        "disaggregation flags that the engine's role does not read",
        f"{_UPSTREAM}/pd_disaggregation_hook.py",
        _role_flags,
    ),
    Constraint(
        "role-switch",
        True,
        "a role that changes at run time, with what is not rebuilt",
        f"{_UPSTREAM}/pd_disaggregation_hook.py",
        _role_switch,
    ),
)
