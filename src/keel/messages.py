"""What the HTTP process and the scheduler process say to each other (msgpack over ZeroMQ)."""

from __future__ import annotations

import msgspec


class SamplingParams(msgspec.Struct, frozen=True):
    """How tokens are chosen and when an answer ends.

    Args:
        max_new_tokens: None: as many as the context holds.
        temperature: 0 takes the most probable token.
        top_p: smallest set of tokens whose probability reaches it; 1 is all.
        top_k: number of most probable tokens to choose from; -1 is all.
        min_p: least probability relative to the most probable token; 0 is all.
        seed: the answer depends on it and not on the batch's company; None: the server draws one.
        min_new_tokens: stop tokens are not chosen before that many.
        stop_token_ids: end the answer, in addition to the model's own.
        ignore_eos: the model's own stop tokens do not end the answer.
    """

    max_new_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    seed: int | None = None
    min_new_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False


class _ToScheduler(msgspec.Struct, frozen=True, tag=True):
    pass


class Generate(_ToScheduler, frozen=True):
    """A request. `namespace` keeps prefixes of different adapters or tenants apart in the cache."""

    rid: str
    input_ids: list[int]
    params: SamplingParams
    namespace: str = ""


class Abort(_ToScheduler, frozen=True):
    """End the requests whose id begins with `prefix`; an empty prefix ends all."""

    prefix: str


class End(_ToScheduler, frozen=True):
    """End the one request of this id, which nobody listens to any more."""

    rid: str


class FlushCache(_ToScheduler, frozen=True):
    """Empty the prefix cache if nothing is running or waiting."""

    ticket: int


class GetStats(_ToScheduler, frozen=True):
    """Ask for `Stats` as of now."""

    ticket: int


class Shutdown(_ToScheduler, frozen=True):
    """End the scheduler process."""


ToScheduler = Generate | Abort | End | FlushCache | GetStats | Shutdown


class Finish(msgspec.Struct, frozen=True):
    """Why an answer ended.

    Args:
        kind: `stop`, `length`, `abort` or `error`.
        matched: the token that ended it, of `stop`.
        message, status: of `error`: a sentence and an HTTP status.
    """

    kind: str
    matched: int | None = None
    message: str = ""
    status: int = 200


class Tokens(msgspec.Struct, frozen=True):
    """New tokens of one request.

    Args:
        cached_tokens: prompt tokens that came from the prefix cache.
    """

    rid: str
    ids: list[int]
    finish: Finish | None = None
    cached_tokens: int = 0


class Stats(msgspec.Struct, frozen=True):
    """The scheduler at one moment; counters run from its start."""

    running: int = 0
    waiting: int = 0
    used_tokens: int = 0
    cached_tokens: int = 0
    pool_tokens: int = 0
    prompt_tokens_total: int = 0
    prefix_hit_tokens_total: int = 0
    generated_tokens_total: int = 0
    aborted_total: int = 0
    preempted_total: int = 0
    steps_total: int = 0


class _ToServer(msgspec.Struct, frozen=True, tag=True):
    pass


class Ready(_ToServer, frozen=True):
    """The model is loaded.

    Args:
        max_request_tokens: the longest request, prompt and answer.
        pool_tokens: size of the KV pool.
        seconds: that loading took.
    """

    pid: int
    device: str
    dtype: str
    max_request_tokens: int
    max_running_requests: int
    chunked_prefill_size: int
    pool_tokens: int
    seconds: float


class Failed(_ToServer, frozen=True):
    """The scheduler cannot go on, for a reason that a person can mend."""

    what: str
    remedy: str
    exit_code: int


class StepDone(_ToServer, frozen=True):
    """What one step of the scheduler produced."""

    tokens: list[Tokens]
    stats: Stats


class Answer(_ToServer, frozen=True):
    """The reply to `FlushCache` and `GetStats`."""

    ticket: int
    ok: bool
    stats: Stats


ToServer = Ready | Failed | StepDone | Answer
