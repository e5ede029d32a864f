"""The scheduler over a tiny real model: same tokens in any company, and nothing is lost."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from keel.args import ServerArgs
from keel.messages import Finish, Generate, SamplingParams, Tokens
from keel.scheduler.build import build_scheduler
from keel.scheduler.scheduler import Scheduler
from keel.weights.checkpoint import open_checkpoint
from support import tiny as tiny_models

GREEDY = SamplingParams(temperature=0.0, max_new_tokens=12, ignore_eos=True)


def make(folder: Path, **flags: object) -> Scheduler:
    """A scheduler with a small pool, which prefers trouble."""
    torch.set_num_threads(1)
    args = replace(ServerArgs(str(folder)), max_total_tokens=256, random_seed=1)
    return build_scheduler(replace(args, **flags), open_checkpoint(folder)).scheduler  # type: ignore[arg-type]


def drain(scheduler: Scheduler) -> dict[str, tuple[list[int], Finish | None]]:
    """Run to the end; each request's tokens and why it ended."""
    found: dict[str, tuple[list[int], Finish | None]] = {}
    steps = 0
    while not scheduler.is_idle:
        for tokens in scheduler.step():
            note(found, tokens)
        steps += 1
        assert steps < 5000, "no progress"
    scheduler.check_integrity()
    return found


def note(found: dict[str, tuple[list[int], Finish | None]], tokens: Tokens) -> None:
    ids, _ = found.get(tokens.rid, ([], None))
    found[tokens.rid] = (ids + tokens.ids, tokens.finish)


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    """Prompts of 1 to 100 tokens, a third of which share beginnings."""
    rng = random.Random(seed)
    shared = [rng.randrange(4, tiny_models.VOCAB) for _ in range(90)]
    found = []
    for index in range(count):
        own = [rng.randrange(4, tiny_models.VOCAB) for _ in range(rng.randrange(1, 40))]
        found.append(shared[: rng.randrange(90)] + own if index % 3 == 0 else own)
    return found


@pytest.fixture(scope="module")
def alone(tiny: Path) -> dict[str, list[int]]:
    """What each prompt becomes with a scheduler of its own and no cache."""
    scheduler = make(tiny, disable_radix_cache=True)
    found = {}
    for index, ids in enumerate(prompts(24)):
        scheduler.submit(Generate(f"r{index}", ids, GREEDY))
        found |= {rid: tokens for rid, (tokens, _) in drain(scheduler).items()}
    return found


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"disable_radix_cache": True},
        {"chunked_prefill_size": 16},
        {"chunked_prefill_size": -1, "max_prefill_tokens": 30},
        {"max_running_requests": 3},
        {"max_total_tokens": 130, "chunked_prefill_size": 32},
    ],
    ids=str,
)
def test_company_cache_chunks_and_preemption_change_no_token(
    tiny: Path, alone: dict[str, list[int]], flags: dict[str, object]
) -> None:
    scheduler = make(tiny, **flags)
    for again in range(2):
        for index, ids in enumerate(prompts(24)):
            assert scheduler.submit(Generate(f"r{index}", ids, GREEDY)) is None
        found = drain(scheduler)
        assert {rid: tokens for rid, (tokens, _) in found.items()} == alone, again
    stats = scheduler.stats()
    assert stats.generated_tokens_total == 2 * 24 * 12
    assert (stats.prefix_hit_tokens_total > 0) == ("disable_radix_cache" not in flags)


@pytest.mark.parametrize("disable_radix_cache", [False, True])
def test_a_request_that_gave_up_its_memory_goes_on_where_it_was(
    tiny: Path, disable_radix_cache: bool
) -> None:
    long = SamplingParams(temperature=0.0, max_new_tokens=70, ignore_eos=True)
    some = [ids[:30] for ids in prompts(6)]
    roomy = make(tiny, max_total_tokens=2000)
    tight = make(tiny, max_total_tokens=130, disable_radix_cache=disable_radix_cache)
    for index, ids in enumerate(some):
        roomy.submit(Generate(f"r{index}", ids, long))
        tight.submit(Generate(f"r{index}", ids, long))
    assert drain(tight) == drain(roomy)
    assert tight.stats().preempted_total > 0
    assert roomy.stats().preempted_total == 0


def test_a_seed_gives_the_same_answer_in_any_company(tiny: Path) -> None:
    how = SamplingParams(temperature=1.0, top_p=0.9, max_new_tokens=20, seed=5, ignore_eos=True)
    scheduler = make(tiny)
    scheduler.submit(Generate("a", [5, 6, 7], how))
    alone = drain(scheduler)["a"][0]
    scheduler = make(tiny, random_seed=99)
    noise = replace_seed(how, None)
    for index in range(6):
        scheduler.submit(Generate(f"n{index}", [9 + index], noise))
    scheduler.submit(Generate("a", [5, 6, 7], how))
    found = drain(scheduler)
    assert found["a"][0] == alone
    assert len({tuple(tokens) for tokens, _ in found.values()}) == 7
    scheduler.submit(Generate("b", [5, 6, 7], replace_seed(how, 6)))
    assert drain(scheduler)["b"][0] != alone


def replace_seed(how: SamplingParams, seed: int | None) -> SamplingParams:
    import msgspec

    return msgspec.structs.replace(how, seed=seed)


def test_the_server_draws_other_seeds_each_time_but_the_same_after_a_restart(tiny: Path) -> None:
    how = SamplingParams(temperature=1.0, max_new_tokens=20, ignore_eos=True)

    def two() -> list[list[int]]:
        scheduler = make(tiny)
        for rid in "ab":
            scheduler.submit(Generate(rid, [5, 6, 7], how))
        found = drain(scheduler)
        return [found[rid][0] for rid in "ab"]

    first = two()
    assert first[0] != first[1]
    assert two() == first


def test_answers_end_at_stop_tokens_lengths_and_the_context(tiny: Path) -> None:
    scheduler = make(tiny)
    scheduler.submit(Generate("long", [4, 5], GREEDY))
    tokens = drain(scheduler)["long"][0]
    stop = tokens[5]
    at = tokens.index(stop)
    how = SamplingParams(temperature=0.0, max_new_tokens=12, stop_token_ids=(stop,))
    scheduler.submit(Generate("stop", [4, 5], how))
    assert drain(scheduler)["stop"] == (tokens[: at + 1], Finish("stop", matched=stop))
    late = SamplingParams(
        temperature=0.0, max_new_tokens=12, stop_token_ids=(stop,), min_new_tokens=at + 1
    )
    scheduler.submit(Generate("late", [4, 5], late))
    answer, _ = drain(scheduler)["late"]
    assert stop not in answer[: at + 1]
    # No limit given: to the end of the context, which is the pool here.
    endless = SamplingParams(temperature=0.0, ignore_eos=True)
    scheduler.submit(Generate("end", [4] * 200, endless))
    answer, why = drain(scheduler)["end"]
    assert (len(answer), why) == (56, Finish("length"))


def test_aborted_requests_free_everything_wherever_they_are(tiny: Path) -> None:
    scheduler = make(tiny, max_running_requests=2, chunked_prefill_size=8)
    for index in range(4):
        scheduler.submit(Generate(f"job-{index}", [10 + index] * 20, GREEDY))
    scheduler.step()  # one is in the middle of its prompt, the others wait
    assert {tokens.rid for tokens in scheduler.abort("job-0")} == {"job-0"}
    for _ in range(6):
        scheduler.step()
    ended = scheduler.abort("job-")
    assert [tokens.finish for tokens in ended] == [Finish("abort")] * 3
    assert scheduler.is_idle
    scheduler.check_integrity()
    assert scheduler.stats().used_tokens == 0
    assert scheduler.abort("job-") == []


def test_ending_one_request_leaves_those_whose_id_goes_on(tiny: Path) -> None:
    scheduler = make(tiny)
    for rid in ("job-1", "job-10"):
        scheduler.submit(Generate(rid, [5] * 20, GREEDY))
    scheduler.step()
    assert scheduler.end("job-1") == [Tokens("job-1", [], Finish("abort"))]
    assert scheduler.end("job-1") == scheduler.end("job-") == scheduler.end("") == []
    assert list(drain(scheduler)) == ["job-10"]
    assert scheduler.stats().aborted_total == 1


def test_flushing_waits_for_idleness_and_empties_the_cache(tiny: Path) -> None:
    scheduler = make(tiny)
    scheduler.submit(Generate("a", [5] * 30, GREEDY))
    assert not scheduler.flush()
    drain(scheduler)
    assert scheduler.stats().cached_tokens > 0
    assert scheduler.flush()
    assert scheduler.stats().cached_tokens == 0
    scheduler.check_integrity()


def test_requests_that_cannot_be_are_refused_with_a_status(tiny: Path) -> None:
    scheduler = make(tiny, max_running_requests=1, max_queued_requests=1)
    cases = [([], 400, "no tokens"), ([5] * 256, 400, "256 tokens; a request holds 256")]
    for ids, status, says in cases:
        refusal = scheduler.submit(Generate("x", ids, GREEDY))
        assert refusal is not None
        assert refusal.finish is not None
        assert refusal.finish.status == status
        assert says in refusal.finish.message
    assert scheduler.submit(Generate("a", [5], GREEDY)) is None
    again = scheduler.submit(Generate("a", [5], GREEDY))
    assert again is not None
    assert again.finish is not None
    assert "running already" in again.finish.message
    assert scheduler.submit(Generate("b", [5], GREEDY)) is None
    full = scheduler.submit(Generate("c", [5], GREEDY))
    assert full is not None
    assert full.finish is not None
    assert full.finish.status == 503
    drain(scheduler)


def test_namespaces_do_not_see_each_others_prefixes(tiny: Path) -> None:
    scheduler = make(tiny)
    for rid, namespace in (("a", ""), ("b", "tenant"), ("c", "tenant")):
        scheduler.submit(Generate(rid, [7] * 40, GREEDY, namespace))
        hits = scheduler.stats().prefix_hit_tokens_total
        drain(scheduler)
        assert (scheduler.stats().prefix_hit_tokens_total > hits) == (rid == "c")


def test_a_shared_prefix_is_computed_once_even_by_simultaneous_requests(tiny: Path) -> None:
    scheduler = make(tiny, max_total_tokens=512)
    for index in range(8):
        scheduler.submit(Generate(f"r{index}", [9] * 100 + [20 + index] * 4, GREEDY))
    drain(scheduler)
    assert scheduler.stats().prefix_hit_tokens_total >= 7 * 100


def test_a_stream_of_short_requests_does_not_starve_a_long_one(tiny: Path) -> None:
    scheduler = make(tiny, max_running_requests=2, max_total_tokens=200)
    short = SamplingParams(temperature=0.0, max_new_tokens=2, ignore_eos=True)
    scheduler.submit(Generate("s-first", [5] * 10, short))
    scheduler.submit(Generate("long", [6] * 150, GREEDY))
    ended = []
    for step in range(60):
        scheduler.submit(Generate(f"s{step}", [7 + step % 9] * 10, short))
        ended += [tokens.rid for tokens in scheduler.step() if tokens.finish]
        if "long" in ended:
            break
    assert "long" in ended
    scheduler.abort("")
    scheduler.check_integrity()


def test_random_arrivals_and_aborts_leave_the_pool_whole(tiny: Path) -> None:
    rng = random.Random(3)
    scheduler = make(tiny, max_total_tokens=150, max_running_requests=6, chunked_prefill_size=24)
    many = prompts(150, seed=4)
    alive: set[str] = set()
    for index, ids in enumerate(many):
        how = SamplingParams(
            temperature=rng.choice([0.0, 1.0]), max_new_tokens=rng.randrange(1, 20)
        )
        if scheduler.submit(Generate(f"r{index}", ids[:100], how)) is None:
            alive.add(f"r{index}")
        for _ in range(rng.randrange(3)):
            alive -= {tokens.rid for tokens in scheduler.step() if tokens.finish}
        if alive and rng.random() < 0.3:
            victim = rng.choice(sorted(alive))
            alive -= {tokens.rid for tokens in scheduler.abort(victim)}
    drain(scheduler)
    assert scheduler.stats().preempted_total > 0
    assert scheduler.stats().used_tokens == 0
