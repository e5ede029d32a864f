"""Chat templates, as transformers renders them, and in a sandbox."""

from __future__ import annotations

from typing import Any

import pytest

from keel.tokenizer.chat import ChatTemplate, ChatTemplateError

TURNS: list[dict[str, Any]] = [
    {"role": "system", "content": "Be <brief> & kind."},
    {"role": "user", "content": "Hé?"},
]


def test_it_renders_what_transformers_renders() -> None:
    chat_template_utils = pytest.importorskip("transformers.utils.chat_template_utils")
    source = """{% for m in messages %}
    {%- if loop.first and m.role != 'system' %}{{ raise_exception('no system') }}{% endif %}
    {{ bos_token }}{{ m['role'] | upper }}: {{ m | tojson }}
    {%- if loop.last %}{% break %}{% endif %}
{% endfor %}{% if add_generation_prompt %}ANSWER{{ extra or '' }}{% endif %}"""
    ours = ChatTemplate(source, {"bos_token": "<s>"}).render(TURNS, extra=" now")
    theirs, _ = chat_template_utils.render_jinja_template(
        conversations=[TURNS],
        chat_template=source,
        add_generation_prompt=True,
        bos_token="<s>",
        extra=" now",
    )
    assert ours == theirs[0]


@pytest.mark.parametrize(
    "source",
    ["{{ raise_exception('roles must alternate') }}", "{{ messages[9].content }}", "{{ 1 + 'a' }}"],
)
def test_a_refusal_is_an_error_for_the_client(source: str) -> None:
    with pytest.raises(ChatTemplateError, match="does not take these messages"):
        ChatTemplate(source, {}).render(TURNS)


def test_a_template_that_is_no_jinja_is_said_at_start() -> None:
    with pytest.raises(ChatTemplateError, match="no Jinja"):
        ChatTemplate("{% for %}", {})


@pytest.mark.parametrize(
    "source",
    ["{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ cycler.__init__.__globals__ }}"],
)
def test_a_template_reaches_nothing_outside(source: str) -> None:
    with pytest.raises(ChatTemplateError):
        ChatTemplate(source, {}).render(TURNS)
