"""The engine inside one Python process: for offline use, tests and benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from keel.args import ServerArgs
from keel.messages import Finish, Generate, SamplingParams, Tokens
from keel.scheduler.build import build_scheduler
from keel.tokenizer.answer import AnswerText
from keel.tokenizer.load import load_tokenizer
from keel.weights.checkpoint import Checkpoint, open_checkpoint


@dataclass(frozen=True)
class Answer:
    """What a prompt became.

    Args:
        ids: the answer's tokens, with the one that stopped it.
        cached_tokens: prompt tokens that came from the prefix cache.
    """

    text: str
    ids: list[int]
    finish: Finish
    prompt_tokens: int
    cached_tokens: int


class Engine:
    """A scheduler, a model and a tokenizer, driven by `generate`.

    Raises:
        ModelError, ArgumentError: the model cannot be loaded, or not like this.
    """

    def __init__(self, args: ServerArgs, checkpoint: Checkpoint | None = None) -> None:
        checkpoint = checkpoint or open_checkpoint(args.model_path)
        self.tokenizer = load_tokenizer(args, checkpoint)
        self._built = build_scheduler(args, checkpoint)
        self.scheduler = self._built.scheduler
        self._count = 0

    def generate(
        self,
        prompts: Sequence[str | list[int]],
        params: SamplingParams | Sequence[SamplingParams],
        *,
        stop: Sequence[str] = (),
    ) -> list[Answer]:
        """Answer all prompts together, in one running batch.

        Args:
            prompts: texts or token ids.
            params: for all, or one each.
            stop: strings that end an answer.

        Raises:
            ValueError: a prompt was refused; says why.
        """
        each = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
        ids = [self.tokenizer.encode(one) if isinstance(one, str) else one for one in prompts]
        texts = [AnswerText(self.tokenizer, stop) for _ in prompts]
        answers: list[list[int]] = [[] for _ in prompts]
        shown = [""] * len(prompts)
        finish: list[Finish | None] = [None] * len(prompts)
        cached = [0] * len(prompts)
        index: dict[str, int] = {}
        for at, (prompt, how) in enumerate(zip(ids, each, strict=True)):
            rid = f"offline-{self._count}"
            self._count += 1
            index[rid] = at
            refusal = self.scheduler.submit(Generate(rid, prompt, how))
            if refusal and refusal.finish:
                for known in index:
                    self.scheduler.end(known)
                raise ValueError(refusal.finish.message)

        def take(tokens: Tokens) -> None:
            at = index[tokens.rid]
            answers[at] += tokens.ids
            shown[at] += texts[at].add(tokens.ids)
            cached[at] = tokens.cached_tokens
            finish[at] = tokens.finish
            if texts[at].matched is not None and tokens.finish is None:
                self.scheduler.end(tokens.rid)
                finish[at] = Finish("stop")

        while not self.scheduler.is_idle:
            for tokens in self.scheduler.step():
                take(tokens)
        return [
            Answer(shown[at] + texts[at].finish(), answers[at], ended, len(ids[at]), cached[at])
            for at, ended in enumerate(finish)
            if ended is not None
        ]

    @property
    def device(self) -> torch.device:
        """Where the model runs."""
        return self._built.runner.where.device
