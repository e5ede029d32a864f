"""Markdown to HTML with anchors, copyable code, and links that are resolved once and for all."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token

# Gives the address of a link's target, or None where it is no page: then only the text stays.
Resolve = Callable[[str], str | None]

_CLASSES = {"Comment": "c", "Literal.String": "s", "Keyword": "k", "Name.Tag": "k"}


@dataclass(frozen=True)
class Heading:
    """A heading of a page, and the plain text until the next one."""

    level: int
    anchor: str
    text: str
    body: str


@dataclass(frozen=True)
class Rendered:
    """A page's HTML, its headings, and every code block as (info, text, line)."""

    html: str
    title: str
    headings: tuple[Heading, ...]
    code: tuple[tuple[str, str, int], ...]

    @property
    def below_title(self) -> str:
        """The HTML without the page's first heading, for pages that show it themselves."""
        return re.sub(r"<h1.*?</h1>\n", "", self.html, count=1, flags=re.DOTALL)


def slug(text: str) -> str:
    """An anchor for a heading: lower case, words joined by dashes."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "section"


def render(text: str, resolve: Resolve) -> Rendered:
    """Render a page; `resolve` is asked about every link."""
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = parser.parse(text)
    seen: dict[str, int] = {}
    headings: list[tuple[int, str, str, list[str]]] = []
    code: list[tuple[str, str, int]] = []
    for index, token in enumerate(tokens):
        if token.type == "heading_open":
            words = _plain(tokens[index + 1])
            anchor = slug(words)
            seen[anchor] = seen.get(anchor, 0) + 1
            anchor += f"-{seen[anchor]}" if seen[anchor] > 1 else ""
            token.attrSet("id", anchor)
            headings.append((int(token.tag[1]), anchor, words, []))
        elif token.type == "inline" and tokens[index - 1].type != "heading_open":
            if headings:
                headings[-1][3].append(_plain(token))
        elif token.type == "fence":
            code.append((token.info.strip(), token.content, (token.map or [0])[0] + 1))
        if token.type == "inline":
            _resolve_links(token, resolve)
    parser.add_render_rule("fence", _fence)
    parser.add_render_rule("heading_close", _heading_close)
    parser.add_render_rule("table_open", _table_open)
    parser.add_render_rule("table_close", _table_close)
    return Rendered(
        html=parser.renderer.render(tokens, parser.options, {}),
        title=headings[0][2] if headings else "",
        headings=tuple(
            Heading(level, anchor, words, " ".join(body)) for level, anchor, words, body in headings
        ),
        code=tuple(code),
    )


def _plain(token: Token) -> str:
    return "".join(
        child.content
        if child.type in ("text", "code_inline")
        else " " * (child.type == "softbreak")
        for child in token.children or ()
    )


def _resolve_links(token: Token, resolve: Resolve) -> None:
    dropped = 0
    kept = []
    for child in token.children or ():
        if child.type == "link_open":
            target = resolve(str(child.attrGet("href")))
            if target is None:
                dropped += 1
                continue
            child.attrSet("href", target)
        elif child.type == "link_close" and dropped:
            dropped -= 1
            continue
        kept.append(child)
    token.children = kept


def _heading_close(
    self: RendererHTML, tokens: Sequence[Token], index: int, options: Any, env: Any
) -> str:
    opened = tokens[index - 2]
    if opened.tag == "h1":
        return "</h1>\n"
    link = f'<a class="anchor" href="#{opened.attrGet("id")}" aria-label="Link to this section">'
    return f" {link}#</a></{opened.tag}>\n"


def _table_open(
    self: RendererHTML, tokens: Sequence[Token], index: int, options: Any, env: Any
) -> str:
    return '<div class="scroll" tabindex="0" role="region" aria-label="Table"><table>\n'


def _table_close(
    self: RendererHTML, tokens: Sequence[Token], index: int, options: Any, env: Any
) -> str:
    return "</table></div>\n"


def _fence(self: RendererHTML, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    token = tokens[index]
    language = token.info.split(" ")[0] if token.info else ""
    code = highlight(token.content, language)
    return f'<div class="code"><pre tabindex="0"><code>{code}</code></pre></div>\n'


def highlight(text: str, language: str) -> str:
    """Code as HTML; comments, strings and keywords are marked, nothing else."""
    from pygments.lexers import get_lexer_by_name
    from pygments.util import ClassNotFound

    try:
        lexer = get_lexer_by_name(language or "text", stripnl=False)
    except ClassNotFound:
        return escape(text)
    pieces = []
    for kind, value in lexer.get_tokens(text):
        name = str(kind).removeprefix("Token.")
        mark = next((css for prefix, css in _CLASSES.items() if name.startswith(prefix)), None)
        pieces.append(f'<span class="{mark}">{escape(value)}</span>' if mark else escape(value))
    return "".join(pieces)
