"""`slipway cookbook check`: what a recipe or page claims, held against the engines and the site."""

from __future__ import annotations

import itertools
import re
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from keel.args import ArgumentError, parse
from keel.args.bench import parse_bench_offline, parse_bench_serve
from keel.args.router import parse as parse_router
from slipway.cookbook import links
from slipway.cookbook.flags import (
    Known,
    lists_for,
    load_known,
    twice,
    wrong_flag,
    wrong_variable,
)
from slipway.cookbook.generate import (
    ChoiceError,
    all_values,
    cell_choices,
    cell_for,
    chosen,
    complete,
    compose,
    fill,
    generate,
    reachable,
    select,
)
from slipway.cookbook.load import Page, load_pages
from slipway.cookbook.positions import Path as Place
from slipway.cookbook.recipe import Cell, Image
from slipway.cookbook.site import SitePage, assemble, write
from slipway.cookbook.versions import build_date, shortfall, tag_of, version_of
from slipway.errors import ConfigError, UsageError
from slipway.image.reference import parse as parse_reference

KEEL = "keel.args"
ROUTER = ("keel", "router")
_PARSERS: dict[str, Callable[[Sequence[str]], object]] = {
    "keel serve": parse,
    "keel router": parse_router,
    "keel bench serve": parse_bench_serve,
    "keel bench offline": parse_bench_offline,
}
_DATE = re.compile(r"20[0-9]{2}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])")


@dataclass(frozen=True)
class Finding:
    """Something wrong (`error`), or merely worth a look."""

    where: str
    what: str
    error: bool = True

    def __str__(self) -> str:
        return f"{'error' if self.error else 'warning'}: {self.where}: {self.what}"


@dataclass(frozen=True)
class Checked:
    """The findings, and how much was looked at."""

    findings: tuple[Finding, ...]
    commands: int
    pages: int
    examples: int


def check(root: Path, program: click.Command) -> Checked:
    """Check every recipe, every command, every page.

    Raises:
        RecipeError: a recipe is wrong in itself.
        ConfigError: the lists of known flags are missing.
    """
    pages = load_pages(root)
    known = load_known(root)
    findings: list[Finding] = []
    commands = 0
    for page in pages.values():
        findings += _texts(root, page)
        findings += _images(page)
        findings += _records(root, page)
        findings += _companions(page)
        count, wrong = _commands(page, known)
        commands += count
        findings += wrong
    site = assemble(root, program)
    findings += [Finding("docs", what) for what in site.broken]
    with tempfile.TemporaryDirectory(prefix="slipway-site-") as folder:
        write(site, Path(folder))
        findings += [Finding("site", what) for what in links.broken(Path(folder))]
    examples = [one for page in site.pages for one in _examples(root, page, program, known)]
    findings += [one for one in examples if one is not None]
    return Checked(
        tuple(dict.fromkeys(findings)), commands, sum(1 for _ in site.pages), len(examples)
    )


def _commands(page: Page, known: Sequence[Known]) -> tuple[int, list[Finding]]:
    """Every command of a recipe; how many there are, and what is wrong with them."""
    if page.kitchen.engine.flags_from == KEEL:
        return _keel_commands(page)
    findings: dict[Finding, None] = {}
    lists: dict[str, list[Known]] = {}
    judged: set[tuple[Place, str]] = set()
    count = 0
    for choices in reachable(page.recipe):
        count += 1
        cell = cell_for(page.recipe, choices)
        image = select(page.recipe.images, choices)
        assert cell is not None  # `structure.problems` proved both
        assert image is not None
        try:
            if image.reference not in lists:
                lists[image.reference] = lists_for(image, page.kitchen.engine.flags_from, known)
        except ConfigError as error:
            return count, [Finding(page.source.at(_place(page, image)), error.what)]
        for place, flags, env in _sources(page, cell, choices):
            if (place, image.reference) not in judged:
                judged.add((place, image.reference))
                found = _unknown(page, place, flags, env, lists[image.reference])
                findings |= dict.fromkeys(found)
        found = _composed(page, cell, image, choices, lists[image.reference])
        findings |= dict.fromkeys(found)
    return count, [*findings]


def _sources(
    page: Page, cell: Cell, choices: dict[str, str]
) -> Iterator[tuple[Place, tuple[str, ...], tuple[str, ...]]]:
    """Where a command's flags and variables come from: its cell, and the chosen options."""
    yield ("cells", page.recipe.cells.index(cell)), cell.flags, cell.env
    for table, layers in (("overlays", page.recipe.overlays), ("cards", page.recipe.cards)):
        for number, layer in enumerate(layers):
            option = chosen(layer, choices)
            place = (table, number, "options", layer.options.index(option))
            yield place, option.flags, option.env


def _unknown(
    page: Page,
    place: Place,
    flags: tuple[str, ...],
    env: tuple[str, ...],
    lists: Sequence[Known],
) -> Iterator[Finding]:
    for number, flag in enumerate(flags):
        if reason := wrong_flag(flag, lists):
            yield Finding(page.source.at((*place, "flags", number)), reason)
    for number, entry in enumerate(env):
        if reason := wrong_variable(entry, lists):
            yield Finding(page.source.at((*place, "env", number)), reason)


def _composed(
    page: Page, cell: Cell, image: Image, choices: dict[str, str], lists: Sequence[Known]
) -> Iterator[Finding]:
    """What only a whole command shows: a flag given twice, a need that its image does not meet."""
    engine = page.kitchen.engine
    flags, _, _, needs, _ = compose(page.recipe, cell, choices)
    more = engine.multi_node if cell.nodes > 1 else ()
    if again := twice([f"{engine.model_flag} x", *flags, *more, *engine.tail], lists):
        where = page.source.at(("cells", page.recipe.cells.index(cell)))
        yield Finding(where, f"{again} is given twice by {_named(choices)}")
    for need in needs:
        if gap := shortfall(image, need):
            stated = version_of(image) if need.version else build_date(tag_of(image.reference))
            excused = bool(image.floating) and not stated
            yield Finding(page.source.at(_place(page, image)), gap, error=not excused)


def _keel_commands(page: Page) -> tuple[int, list[Finding]]:
    findings = []
    count = 0
    for choices in reachable(page.recipe):
        count += 1
        command = generate(page.kitchen, choices)
        for node in command.nodes:
            for words, entry in (
                (node.words, page.kitchen.engine.entry),
                (node.container_words, page.kitchen.engine.container_entry),
            ):
                try:
                    parse(words[len(entry) :])
                except ArgumentError as error:
                    cell = cell_for(page.recipe, choices)
                    assert cell is not None  # reachable choices have one
                    where = page.source.at(_origin(page, choices, str(error.what)))
                    findings.append(Finding(where, f"{_whole(error)} ({_named(choices)})"))
    return count, findings


def _whole(error: ArgumentError) -> str:
    return f"{error.what}; {error.remedy}" if error.remedy else error.what


def _origin(page: Page, choices: dict[str, str], what: str) -> Place:
    """The flag that a message of the parser names, in an option or cell; else the cell."""
    cell = cell_for(page.recipe, choices)
    assert cell is not None  # reachable choices have one
    for place, flags, _ in _sources(page, cell, choices):
        for number, flag in enumerate(flags):
            if flag.split(" ", 1)[0] in what:
                return (*place, "flags", number)
    return ("cells", page.recipe.cells.index(cell))


def _named(choices: dict[str, str]) -> str:
    return " ".join(f"{id_}={value}" for id_, value in choices.items())


def _place(page: Page, image: Image) -> Place:
    return ("images", page.recipe.images.index(image), "reference")


def _images(page: Page) -> Iterator[Finding]:
    for image in page.recipe.images:
        where = page.source.at(_place(page, image))
        try:
            reference = parse_reference(image.reference, default_registry="")
        except UsageError as error:
            yield Finding(where, error.what)
            continue
        if not reference.tag and not reference.digest:
            yield Finding(where, f"{image.reference} has no tag: name one")
        if not version_of(image) and not image.floating:
            yield Finding(where, f"{image.reference} states no version: say why (floating)")
    for choice in cell_choices(page.recipe):
        picked = select(page.recipe.images, complete(page.kitchen, choice))
        assert picked is not None  # `structure.problems` proved that every cell has one
        hardware = page.kitchen.hardware[choice["hw"]]
        where = page.source.at(_place(page, picked))
        if hardware.image and hardware.image not in picked.reference:
            yield Finding(
                where, f"{picked.reference} is no image for {hardware.label}: {hardware.image}"
            )
        if hardware.maker != "amd" and "rocm" in picked.reference:
            yield Finding(where, f"{picked.reference} is for AMD, and {hardware.label} is not")


def _companions(page: Page) -> Iterator[Finding]:
    """Routers that their own parser would refuse, with every blank at its default."""
    blanks = {value.id: value.default for value in all_values(page.kitchen)}
    for number, extra in enumerate(page.recipe.companions):
        words = [fill(word, blanks) for word in extra.words]
        if tuple(words[: len(ROUTER)]) == ROUTER:
            try:
                parse_router(words[len(ROUTER) :])
            except ArgumentError as error:
                yield Finding(page.source.at(("companions", number, "words")), _whole(error))


def _records(root: Path, page: Page) -> Iterator[Finding]:
    """Verification records whose command has changed since."""
    valid = 0
    for number, record in enumerate(page.recipe.verified):
        where = page.source.at(("verified", number))
        if not _DATE.fullmatch(record.date):
            yield Finding(where, f"{record.date!r} is no date: YYYY-MM-DD")
        if not (root / record.how.split(" ")[0]).is_file():
            yield Finding(where, f"{record.how!r} is no file of the repository")
        try:
            now = generate(page.kitchen, record.choices).hash
        except ChoiceError as error:
            yield Finding(where, f"the record's choices have no command: {error.what}")
            continue
        if now == record.hash:
            valid += 1
        else:
            what = f"the command is now {now}, it was {record.hash}"
            yield Finding(where, f"the record of {record.date} is void: {what}", error=False)
    if page.recipe.status == "run" and not valid:
        where = page.source.at(("status",))
        yield Finding(where, "the page says run, and no record holds", error=False)


def _texts(root: Path, page: Page) -> Iterator[Finding]:
    if not page.text.is_file():
        yield Finding(str(page.source.path), f"the page has no text: {page.text.name}")
    for number, figure in enumerate(page.recipe.figures):
        where = page.source.at(("figures", number))
        if not _DATE.fullmatch(figure.date):
            yield Finding(where, f"{figure.date!r} is no date: YYYY-MM-DD")
        source = figure.source.split(" ")[0]
        if not source:
            yield Finding(where, "the figure has no source")
        elif "://" not in source and not (root / source).is_file():
            yield Finding(where, f"the source {source} is not in the repository")


def _examples(
    root: Path, page: SitePage, program: click.Command, known: Sequence[Known]
) -> Iterator[Finding | None]:
    """Code of the pages: Python compiles, shell parses, known programs accept their words.

    One entry an example, None where nothing is wrong.
    """
    for info, text, line in page.code:
        where = f"{page.source.relative_to(root) if page.source else page.url}:{line}"
        language = info.split(" ")[0]
        if language == "python":
            try:
                compile(text, where, "exec")
            except SyntaxError as error:
                yield Finding(where, f"the example is no Python: {error.msg}")
            else:
                yield None
        elif language in ("bash", "sh"):
            done = subprocess.run(["sh", "-n"], input=text, capture_output=True, text=True)
            reason = f"the example is no shell: {done.stderr.strip()}" if done.returncode else None
            reason = reason or next(filter(None, _wrong_words(text, program, known)), None)
            yield Finding(where, reason) if reason else None


def _wrong_words(text: str, program: click.Command, known: Sequence[Known]) -> Iterator[str | None]:
    """Why `slipway`, a command of `keel`, or `sglang serve` would refuse a line."""
    for line in text.replace("\\\n", " ").splitlines():
        try:
            lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
            lexer.whitespace_split = True
            # Up to a redirection or a pipe.
            words = list(itertools.takewhile(lambda word: word[:1] not in set("<>|;&()"), lexer))
        except ValueError:
            continue  # a quote over several lines: not one of these commands
        if words[:1] == ["slipway"]:
            yield _wrong_slipway(words[1:], program)
        elif read := _PARSERS.get(" ".join(words[:2])) or _PARSERS.get(" ".join(words[:3])):
            try:
                read(words[3 if words[1] == "bench" else 2 :])
            except ArgumentError as error:
                yield _whole(error)
        elif words[:2] == ["sglang", "serve"]:
            newest = [one for one in known if one.name == "sglang"][-1:]
            for number, word in enumerate(words):
                if word.startswith("--"):
                    value = words[number + 1 : number + 2]
                    given = [one for one in value if not one.startswith("--")]
                    yield wrong_flag(" ".join([word, *given]), newest)


def _wrong_slipway(words: list[str], program: click.Command) -> str | None:
    """Why click would refuse the words; nothing is run."""
    command = program
    try:
        while isinstance(command, click.Group):
            if not words and command.invoke_without_command:
                return None
            if not words:
                return f"{command.name} needs one of its commands: {', '.join(command.commands)}"
            context = click.Context(command, info_name="slipway")
            name, found, words = command.resolve_command(context, words)
            if found is None:
                return f"slipway has no command {name}"
            command = found
        command.make_context("slipway", words)
    except (click.ClickException, ModuleNotFoundError) as error:
        return str(error.format_message() if isinstance(error, click.ClickException) else error)
    except click.exceptions.Exit:
        return None
    return None
