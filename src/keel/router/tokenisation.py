"""Routing tokenisation: a chat's token ids, to choose a worker by, and for its engine to use."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import msgspec

from keel.errors import ArgumentError
from keel.router.fields import is_set, output_tokens
from keel.router.plan import Plan, ids_as_bytes
from keel.router.policies import Ask

log = logging.getLogger("keel.router")

_THREADS = 2


class Renderer(Protocol):
    """From messages to the ids that the engine would make of them."""

    def __call__(self, messages: list[dict[str, str]]) -> list[int]:
        """Raises KeelError or ValueError where the template does not take them."""


class _Message(msgspec.Struct, forbid_unknown_fields=True):
    role: str
    content: str


class _Chat(msgspec.Struct):
    """A chat whose prompt is its messages' text and nothing else."""

    messages: list[_Message]
    tools: Any = None
    functions: Any = None
    documents: Any = None
    chat_template: Any = None
    chat_template_kwargs: Any = None
    reasoning_effort: Any = None
    add_generation_prompt: Any = None
    continue_final_message: Any = None
    input_ids: Any = None


_chat = msgspec.json.Decoder(_Chat)
_OTHERWISE = tuple(name for name in _Chat.__struct_fields__ if name != "messages")


class Tokenisation:
    """Renders and tokenises beside the event loop.

    Args:
        render: see `Renderer`.
        not_forwarded: models whose engines are not sent the ids.
        counted: called with what became of each chat.
    """

    def __init__(
        self, render: Renderer, not_forwarded: Collection[str], counted: Callable[[str], None]
    ) -> None:
        self._render, self._not_forwarded, self._counted = render, not_forwarded, counted
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="keel-router-tokens")
        self._failed_once = False

    def start(self, plan: Plan) -> asyncio.Future[None] | None:
        """Work a chat's ids into its plan; None where there is nothing to do for it."""
        if plan.fields is None or is_set(plan.fields.input_ids):
            self._counted("bypassed")
            return None
        messages = plain_messages(plan.body)
        if messages is None:
            self._counted("bypassed")
            return None
        return asyncio.get_running_loop().create_task(self._run(plan, messages))

    async def _run(self, plan: Plan, messages: list[dict[str, str]]) -> None:
        loop = asyncio.get_running_loop()
        try:
            ids = await loop.run_in_executor(self._threads, self._render, messages)
        except Exception as error:  # whatever a template raises: the engine renders it itself
            self._counted("failed")
            if not self._failed_once:
                self._failed_once = True
                log.warning("a chat could not be tokenised here, its engine will: %s", error)
            return
        length = len(ids) + (output_tokens(plan.fields) if plan.fields is not None else 0)
        plan.length = max(1, length)
        plan.ask = Ask(ids_as_bytes(ids), plan.ask.key, max(1, len(ids)))
        if plan.model in self._not_forwarded:
            self._counted("routing_only")
            return
        self._counted("forwarded")
        ours = b'"input_ids":' + msgspec.json.encode(ids)
        plan.members = plan.members + b"," + ours if plan.members else ours


def plain_messages(body: bytes) -> list[dict[str, str]] | None:
    """The messages of a chat that is only text; None where anything else shapes the prompt."""
    try:
        chat = _chat.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    if any(getattr(chat, name) is not None for name in _OTHERWISE):
        return None
    return [{"role": message.role, "content": message.content} for message in chat.messages]


def load_renderer(path: str, template_path: str | None) -> Renderer:
    """The tokenizer and chat template of a checkpoint.

    Raises:
        ModelError: there is none, or it is damaged.
        ArgumentError: there is no chat template, or its file cannot be read.
    """
    from keel.tokenizer.chat import ChatTemplate
    from keel.weights.checkpoint import open_checkpoint

    tokenizer = open_checkpoint(path).tokenizer()
    source = tokenizer.chat_template
    if template_path is not None:
        try:
            source = Path(template_path).expanduser().read_text("utf-8")
        except (OSError, ValueError) as error:
            raise ArgumentError(
                f"--chat-template {template_path}: {error}", "give a readable Jinja file"
            ) from error
    if source is None:
        raise ArgumentError(
            f"--tokenizer-path {path}: it has no chat template", "give one with --chat-template"
        )
    template = ChatTemplate(source, tokenizer.special_tokens)

    def render(messages: list[dict[str, str]]) -> list[int]:
        return tokenizer.encode(template.render(messages), add_special_tokens=False)

    return render
