"""Chat templates: a conversation to the text that the model was trained on, in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from keel.errors import KeelError


class ChatTemplateError(KeelError):
    """The template cannot be read, or refuses a conversation."""


class ChatTemplate:
    """A compiled template; the names that it sees are those of transformers.

    Raises:
        ChatTemplateError: the source is no Jinja.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        self._special = dict(special_tokens)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ChatTemplateError(
                f"the chat template is no Jinja: {error}", "give another with --chat-template"
            ) from error

    def render(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> str:
        """The prompt of a conversation, ending where the assistant's answer begins.

        Raises:
            ChatTemplateError: the template refuses the conversation, or fails on it.
        """
        names = {"add_generation_prompt": True, **self._special, **variables}
        try:
            return self._template.render(messages=messages, **names)
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, IndexError) as error:
            raise ChatTemplateError(
                f"the chat template does not take these messages: {error}",
                "give messages with `role` and `content`",
            ) from error


def _tojson(value: Any, indent: int | None = None, **_: Any) -> str:
    # Not Jinja's own: that one escapes HTML.
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
