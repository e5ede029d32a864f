"""What the request handlers share."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from keel.args import ServerArgs
from keel.models.config import ModelConfig
from keel.server.client import SchedulerClient
from keel.server.metrics import Metrics
from keel.tokenizer.chat import ChatTemplate
from keel.tokenizer.tokenizer import Tokenizer


@dataclass
class ServerState:
    """One server: what it was asked, what it serves, and whom it asks.

    Args:
        longest_token: characters of the longest token; more text than this times the tokens of a
            request cannot fit, and need not be tokenized to know.
    """

    args: ServerArgs
    client: SchedulerClient
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    config: ModelConfig
    metrics: Metrics
    longest_token: int
    started: float = field(default_factory=time.time)
    draining: bool = False

    @classmethod
    def make(
        cls, args: ServerArgs, client: SchedulerClient, tokenizer: Tokenizer, config: ModelConfig
    ) -> ServerState:
        """Compile the template and set up metrics.

        Raises:
            ChatTemplateError: the template is no Jinja.
        """
        template = None
        if tokenizer.chat_template:
            template = ChatTemplate(tokenizer.chat_template, tokenizer.special_tokens)
        return cls(
            args=args,
            client=client,
            tokenizer=tokenizer,
            chat_template=template,
            config=config,
            metrics=Metrics(client, args.model_name),
            longest_token=max(map(len, tokenizer.backend.get_vocab()), default=1),
        )
