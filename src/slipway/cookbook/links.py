"""Every link and anchor of the written site leads somewhere, and nothing leaves its origin."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

# Attributes whose value a browser fetches by itself.
_FETCHED = {"src", "srcset", "poster", "data"}


@dataclass
class _File(HTMLParser):
    ids: set[str] = field(default_factory=set)
    links: list[tuple[int, str]] = field(default_factory=list)
    fetched: list[tuple[int, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        HTMLParser.__init__(self)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        line = self.getpos()[0]
        for name, value in attrs:
            if name == "id" and value:
                self.ids.add(value)
            elif name == "href" and value is not None:
                (self.fetched if tag == "link" else self.links).append((line, value))
            elif name in _FETCHED and value:
                self.fetched.append((line, value))


def broken(folder: Path) -> Iterator[str]:
    """`file:line: what` for every link or anchor that leads nowhere, and every foreign request."""
    files: dict[Path, _File] = {}
    for path in sorted(folder.rglob("*.html")):
        parsed = _File()
        parsed.feed(path.read_text(encoding="utf-8"))
        files[path.resolve()] = parsed
    for path, parsed in files.items():
        name = path.relative_to(folder.resolve())
        for line, link in parsed.fetched:
            if ":" in link or link.startswith("//"):
                yield f"{name}:{line}: {link} is fetched from another origin"
            elif not (path.parent / unquote(link)).is_file():
                yield f"{name}:{line}: {link} is not there"
        for line, link in parsed.links:
            if ":" in link.split("#")[0].split("/")[0]:
                continue  # another site, for the reader to follow
            target, anchor = urldefrag(link)
            there = (path.parent / unquote(target)).resolve() if target else path
            if there not in files:
                yield f"{name}:{line}: link to {link}: there is no such page"
            elif anchor and not anchor.startswith("?") and anchor not in files[there].ids:
                yield f"{name}:{line}: link to {link}: the page has no such anchor"
