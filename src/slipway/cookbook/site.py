"""The site: recipes, guides and reference pages as static files that work offline."""

from __future__ import annotations

import json
import os
import posixpath
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import jinja2
from markupsafe import Markup

from slipway.cookbook import reference
from slipway.cookbook.generate import (
    all_values,
    cell_choices,
    generate,
    reachable,
)
from slipway.cookbook.inline import inline
from slipway.cookbook.load import Page, load_hardware, load_pages
from slipway.cookbook.markdown import Heading, Rendered, Resolve, render
from slipway.cookbook.recipe import Dimension, Image, Layer, Match, Recipe, options_of
from slipway.cookbook.render import FORMS, shell_words
from slipway.cookbook.render import render as write_command
from slipway.errors import StorageError

TITLE = "Slipway"
HERE = Path(__file__).parent
OUTSIDE = re.compile(r"^(?:[a-z][a-z0-9+.-]*:|//)", re.IGNORECASE)


@dataclass(frozen=True)
class SitePage:
    """One file of the site.

    Args:
        url: from the site's root, for example `models/glm-5.3.html`.
        nav: its name in the list of pages.
        source: the file that it was made from, for links; None for generated pages.
    """

    url: str
    title: str
    nav: str
    summary: str
    html: str
    headings: tuple[Heading, ...]
    template: str = "text.html.jinja"
    source: Path | None = None
    recipe: Page | None = None
    code: tuple[tuple[str, str, int], ...] = ()
    context: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Group:
    """A part of the list of pages."""

    title: str
    pages: tuple[SitePage, ...]


@dataclass(frozen=True)
class Site:
    """Everything that is written, before anything is written."""

    title: str
    stamp: str
    groups: tuple[Group, ...]
    broken: tuple[str, ...]

    @property
    def pages(self) -> Iterable[SitePage]:
        """All pages, in the order of the list."""
        return (page for group in self.groups for page in group.pages)


def build(root: Path, output: Path, program: click.Command, catalogue: str = "") -> Site:
    """Write the site to a folder, in place of what was there.

    Args:
        root: the repository.
        program: the command line whose commands the reference shows.
        catalogue: Markdown of the image catalogue, where a registry was asked.

    Raises:
        RecipeError: a recipe is wrong.
        StorageError: the folder has files that this did not write.
    """
    site = assemble(root, program, catalogue)
    marker = output / ".slipway-site"
    if output.is_dir() and any(output.iterdir()) and not marker.is_file():
        raise StorageError(
            f"{output} has files and is no site built before", "choose an empty folder: --output"
        )
    output.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".site-", dir=output.parent))
    try:
        write(site, scratch)
        if output.exists():
            shutil.rmtree(output)
        scratch.chmod(0o755)
        os.replace(scratch, output)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return site


def write(site: Site, folder: Path) -> None:
    """Write pages, assets and the search index."""
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for page in site.pages:
        text = templates.get_template(page.template).render(
            page=_Safe(page), site=site, root="../" * page.url.count("/"), **page.context
        )
        path = folder / page.url
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    shutil.copytree(HERE / "assets", folder / "assets")
    index = json.dumps(list(_index(site)), ensure_ascii=False, separators=(",", ":"))
    (folder / "search-index.js").write_text(f"window.slipwayIndex={index};\n", encoding="utf-8")
    (folder / ".slipway-site").write_text("written by slipway cookbook build\n")


class _Safe:
    """A page for the templates; its own HTML is not escaped again."""

    def __init__(self, page: SitePage) -> None:
        self._page = page
        self.html = Markup(page.html)  # made by our own renderer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._page, name)


def _index(site: Site) -> Iterable[dict[str, str]]:
    for page in site.pages:
        if not page.headings:
            yield {"u": page.url, "t": page.title, "h": page.title, "x": page.summary}
        for number, heading in enumerate(page.headings):
            first = number == 0
            yield {
                "u": page.url if first else f"{page.url}#{heading.anchor}",
                "t": page.title,
                "h": page.title if first else heading.text,
                "x": (page.summary if first else heading.body)[:220],
            }


def assemble(root: Path, program: click.Command, catalogue: str = "") -> Site:
    """Everything of the site in memory.

    Raises:
        RecipeError: a recipe is wrong.
    """
    recipes = load_pages(root)
    guides = sorted((root / "docs").glob("*.md"))
    urls = {path.resolve(): f"guides/{path.stem}.html" for path in guides}
    urls |= {page.text.resolve(): f"models/{slug}.html" for slug, page in recipes.items()}
    home = root / "docs/cookbook/index.md"
    urls[home.resolve()] = "index.html"
    broken: list[str] = []

    def read(source: Path) -> Rendered:
        url = urls[source.resolve()]
        return render(
            source.read_text(encoding="utf-8"), _resolver(source, url, urls, root, broken)
        )

    models = [_model(page, read(page.text)) for page in recipes.values()]
    written = [_text(path, urls[path.resolve()], read(path)) for path in guides]
    generated = [
        _generated(f"reference/{name}.html", text)
        for name, text in reference.pages(root, load_hardware(root), program).items()
    ]
    if catalogue:
        generated.append(_generated("reference/images.html", catalogue))
    front = _home(read(home), models)
    return Site(
        title=TITLE,
        stamp=_stamp(root),
        groups=(
            Group("Start", (front,)),
            Group("Models", tuple(models)),
            Group("Guides", tuple(written)),
            Group("Reference", tuple(generated)),
        ),
        broken=tuple(broken),
    )


def _resolver(
    source: Path, url: str, urls: Mapping[Path, str], root: Path, broken: list[str]
) -> Resolve:
    """Links of a Markdown file: pages get their address, the repository's other files none."""

    def resolve(href: str) -> str | None:
        if OUTSIDE.match(href) or href.startswith("#"):
            return href
        path, hash_, anchor = href.partition("#")
        target = (source.parent / path).resolve()
        if target in urls:
            return posixpath.relpath(urls[target], posixpath.dirname(url) or ".") + hash_ + anchor
        if path.endswith(".html"):  # a generated page, by its address from here; checked later
            return href
        if not target.exists() or not target.is_relative_to(root.resolve()):
            broken.append(f"{source.relative_to(root)}: {href} leads nowhere")
        return None

    return resolve


def _stamp(root: Path) -> str:
    done = subprocess.run(
        ["git", "-C", str(root), "rev-parse", "--short=9", "HEAD"], capture_output=True, text=True
    )
    commit = f" from commit {done.stdout.strip()}" if done.returncode == 0 else ""
    return f"Built by slipway cookbook build{commit}."


def _text(path: Path, url: str, made: Rendered) -> SitePage:
    return SitePage(
        url=url,
        title=made.title,
        nav=made.title,
        summary=_first(made),
        html=made.html,
        headings=made.headings,
        source=path,
        code=made.code,
    )


def _generated(url: str, text: str) -> SitePage:
    made = render(text, lambda href: href)
    return SitePage(
        url=url,
        title=made.title,
        nav=made.title,
        summary=_first(made),
        html=made.html,
        headings=made.headings,
    )


def _first(made: Rendered) -> str:
    body = made.headings[0].body if made.headings else ""
    return body if len(body) <= 200 else body[:200].rsplit(" ", 1)[0] + " …"


def _home(made: Rendered, models: list[SitePage]) -> SitePage:
    rows = [
        {
            "url": page.url,
            "recipe": page.recipe.recipe,
            "count": f"{sum(1 for _ in reachable(page.recipe.recipe)):,}",
        }
        for page in models
        if page.recipe is not None
    ]
    html = re.sub(r"<p>.*?</p>\n", "", made.below_title, count=1, flags=re.DOTALL)
    return SitePage(
        url="index.html",
        title=made.title,
        nav="Overview",
        summary=_first(made),
        html=html,
        headings=made.headings[1:],
        template="home.html.jinja",
        context={"models": rows, "lead": made.headings[0].body.split("\n")[0]},
        code=made.code,
    )


def _model(page: Page, made: Rendered) -> SitePage:
    recipe, kitchen = page.recipe, page.kitchen
    command = generate(kitchen, {})
    cells = list(_cells(page))
    extra = [("deploy", "Launch command"), ("images", "Images"), ("recipes", "Every recipe")]
    if recipe.figures:
        extra.insert(1, ("figures", "Figures"))
    fixed = [Heading(2, anchor, text, recipe.summary) for anchor, text in extra]
    title = Heading(1, "content", recipe.title, recipe.summary)
    data = json.dumps(inline(kitchen), ensure_ascii=False, separators=(",", ":"))
    return SitePage(
        url=f"models/{recipe.slug}.html",
        title=recipe.title,
        nav=recipe.title,
        summary=recipe.summary,
        html=made.below_title,
        headings=(title, fixed[0], *made.headings[1:], *fixed[1:]),
        template="model.html.jinja",
        source=page.text,
        recipe=page,
        code=made.code,
        context={
            "recipe": recipe,
            "engine": kitchen.engine,
            "forms": FORMS,
            "command": command,
            "command_text": write_command(kitchen, command, "shell"),
            "companions": [(name, shell_words(words)) for name, words in command.companions],
            "status": status_of(command.verified),
            "values": all_values(kitchen),
            "images": [_image(recipe, image) for image in recipe.images],
            "cells": cells,
            "data": Markup(data.replace("</", "<\\/")),
        },
    )


def status_of(record: Any) -> str:
    """What the panel says about a command's verification."""
    if record is None:
        return "Not run by us in this configuration."
    return f"Run by us on {record.date}, {record.hardware}. Record {record.hash}."


def _cells(page: Page) -> Iterable[dict[str, Any]]:
    recipe = page.recipe
    for choice in cell_choices(recipe):
        command = generate(page.kitchen, choice)
        labels = [_label(recipe, id_, value) for id_, value in choice.items()]
        nodes = len(command.nodes)
        texts = [write_command(page.kitchen, command, "shell", 0)]
        if nodes > 1:
            texts.append(f"# nodes 1 to {nodes - 1}: the same with their own --node-rank")
        yield {
            "title": ", ".join(labels) + (f", {nodes} nodes" if nodes > 1 else ""),
            "anchor": "recipe-" + "-".join(choice.values()),
            "image": command.image,
            "text": "\n".join(texts),
            "verified": command.verified,
            "badge": f"run {command.verified.date}" if command.verified else "not run by us",
        }


def _label(recipe: Recipe, id_: str, value: str) -> str:
    groups: tuple[Dimension | Layer, ...] = (*recipe.dimensions, *recipe.layers)
    group = next(group for group in groups if group.id == id_)
    return next(option.label for option in group.options if option.id == value)


def _scope(recipe: Recipe, match: Match) -> str:
    if not match:
        return "everything else" if len(recipe.images) > 1 else "everything"
    return "; ".join(
        ", ".join(_label(recipe, id_, one) for one in options_of(value))
        for id_, value in match.items()
    )


def _image(recipe: Recipe, image: Image) -> dict[str, str]:
    why = " ".join(part for part in (image.because, image.floating) if part)
    return {"scope": _scope(recipe, image.match), "reference": image.reference, "because": why}
