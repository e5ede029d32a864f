"""The engine without a server: as many answers as prompts, each what it is alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from keel.args import ServerArgs
from keel.engine import Engine
from keel.messages import SamplingParams

HOW = SamplingParams(temperature=0.0, max_new_tokens=16, ignore_eos=True)
# More than ten, so that one request's id begins another's.
PROMPTS: list[str | list[int]] = [[10 + index, 20] for index in range(14)]


def make(folder: Path) -> Engine:
    """An engine whose requests are counted from 0."""
    torch.set_num_threads(1)
    return Engine(ServerArgs(str(folder), max_total_tokens=1024, random_seed=1))


def test_an_answer_that_a_stop_string_ends_leaves_the_others(tiny: Path) -> None:
    whole = make(tiny).generate(PROMPTS, HOW)
    stop = whole[1].text[3:6]
    assert stop
    answers = make(tiny).generate(PROMPTS, HOW, stop=[stop])
    assert len(answers) == len(PROMPTS)
    assert answers[1].text == whole[1].text.split(stop)[0]
    assert [one.text for one in answers] == [one.text.split(stop)[0] for one in whole]


def test_a_refused_prompt_leaves_nothing_running(tiny: Path) -> None:
    engine = make(tiny)
    with pytest.raises(ValueError, match="no tokens"):
        engine.generate([*PROMPTS, []], HOW)
    assert engine.scheduler.is_idle
    engine.scheduler.check_integrity()
