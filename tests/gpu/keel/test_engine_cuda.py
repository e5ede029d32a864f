"""The engine on a GPU against itself on the CPU: float32 tokens equal, bfloat16 logits near.

Tolerance: float32 logits differ by 1e-3 at most on magnitudes of 10 (TF32 is off).
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from keel.args import ServerArgs
from keel.engine import Engine
from keel.messages import SamplingParams
from support import tiny as tiny_models

pytestmark = pytest.mark.gpu

SIZE = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.write(tmp_path_factory.mktemp("small"), **SIZE)


def make(folder: Path, device: str, **flags: object) -> Engine:
    args = {"max_total_tokens": 4000, "max_running_requests": 16, **flags}
    return Engine(ServerArgs(str(folder), device=device, **args))  # type: ignore[arg-type]


def prompts() -> list[list[int]]:
    random = torch.Generator().manual_seed(3)
    lengths = [1, 2, 7, 30, 64, 150, 300, 33]
    return [torch.randint(4, 300, (n,), generator=random).tolist() for n in lengths]


@pytest.mark.parametrize("flags", [{}, {"chunked_prefill_size": 64}, {"max_total_tokens": 700}])
def test_float32_tokens_equal_those_of_the_cpu(folder: Path, flags: dict[str, object]) -> None:
    greedy = SamplingParams(temperature=0.0, max_new_tokens=40, ignore_eos=True)
    torch.backends.cuda.matmul.allow_tf32 = False
    cpu = make(folder, "cpu").generate(prompts(), greedy)
    engine = make(folder, "cuda", dtype="float32", **flags)
    assert engine.device.type == "cuda"
    for _ in range(2):  # the second time out of the prefix cache
        cuda = engine.generate(prompts(), greedy)
        assert [answer.ids for answer in cuda] == [answer.ids for answer in cpu]
        engine.scheduler.check_integrity()
    assert any(answer.cached_tokens for answer in cuda)


def test_seeded_sampling_equals_that_of_the_cpu(folder: Path) -> None:
    how = SamplingParams(temperature=0.7, top_p=0.9, seed=11, max_new_tokens=30, ignore_eos=True)
    cpu = make(folder, "cpu").generate(prompts(), how)
    cuda = make(folder, "cuda", dtype="float32").generate(prompts(), how)
    same = sum(a.ids == b.ids for a, b in zip(cpu, cuda, strict=True))
    # A number may fall between the two devices' rounding of a cumulative sum; not in many.
    assert same >= 6


def test_bfloat16_is_the_default_and_answers_alike(folder: Path) -> None:
    greedy = SamplingParams(temperature=0.0, max_new_tokens=1, ignore_eos=True)
    cpu = make(folder, "cpu").generate(prompts(), greedy)
    cuda = make(folder, "auto").generate(prompts(), greedy)
    assert sum(a.ids == b.ids for a, b in zip(cpu, cuda, strict=True)) >= 6
