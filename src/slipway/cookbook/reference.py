"""Reference pages, generated: flags, commands, variables, rules, failures, metrics, hardware."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from keel.args import FLAGS, Flag, flags_of
from keel.args.bench import BenchServeArgs
from keel.args.router import RouterArgs
from slipway.cookbook.recipe import Hardware

# What `/metrics` says of itself: lines of HELP and TYPE.
METRICS = {
    "keel serve": Path("docs/cookbook/metrics.prom"),
    "keel router": Path("docs/cookbook/metrics-router.prom"),
}


def pages(root: Path, hardware: dict[str, Hardware], program: click.Command) -> dict[str, str]:
    """Markdown by name of the page; `program` is the command whose tree is shown."""
    return {
        "keel-flags": flags(
            "keel serve",
            FLAGS,
            "`slipway deploy check` and this cookbook judge commands with the same table.",
        ),
        "keel-router-flags": flags(
            "keel router",
            flags_of(RouterArgs),
            "[The guide](../guides/router.html) says what they are for.",
        ),
        "keel-bench-flags": flags(
            "keel bench serve",
            flags_of(BenchServeArgs),
            "`keel bench offline` takes those of the load and of the report, and those of "
            "[keel serve](keel-flags.html). [The guide](../guides/bench.html) says more.",
        ),
        "slipway-commands": slipway_commands(program),
        "environment": environment(root),
        "deploy-rules": deploy_rules(),
        "failures": failures(root),
        "metrics": metrics(root),
        "hardware": hardware_table(hardware),
    }


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; cells may hold anything."""

    def line(cells: Sequence[str]) -> str:
        return (
            "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
        )

    return "\n".join([line(head), line(["---"] * len(head)), *map(line, rows)])


def flags(command: str, entries: Sequence[Flag], judged: str) -> str:
    """The flags of one command of `keel`, from the table that its parser is made of."""
    text = [
        f"# Flags of {command}",
        "Generated from `keel.args`, the table that the program parses its command line with. "
        + judged,
    ]
    for part in dict.fromkeys(flag.part for flag in entries):
        rows = []
        for flag in (flag for flag in entries if flag.part == part):
            value = "" if flag.switch else "|".join(flag.choices) or flag.field.upper()
            names = ", ".join(f"`{name}`" for name in flag.names)
            default = "required" if flag.required else _default(flag.default)
            rows.append([f"{names} {f'`{value}`' if value else ''}".strip(), default, flag.help])
        text += [f"## {part.capitalize()}", table(["Flag", "Default", "What it does"], rows)]
    return "\n\n".join(text) + "\n"


def _default(value: object) -> str:
    if value is None:
        return "decided at start"
    if isinstance(value, bool):
        return "on" if value else "off"
    if value == () or value == "":
        return "none"
    return f"`{value}`"


def slipway_commands(program: click.Command) -> str:
    """Every command of `slipway`, from click's own tree."""
    text = [
        "# Commands of slipway",
        "Generated from the commands themselves. Every failure has an exit code: "
        "see [Failures and exit codes](failures.html).",
    ]
    for path, found in _walk(program, "slipway"):
        context = click.Context(found, info_name=path)
        usage = " ".join(found.collect_usage_pieces(context))
        text += [f"## {path}", found.get_short_help_str(400), f"```text\n{path} {usage}\n```"]
        rows = []
        for parameter in found.get_params(context):
            record = parameter.get_help_record(context)
            if record is not None and "--help" not in record[0]:
                rows.append([f"`{record[0]}`", record[1]])
        if rows:
            text.append(table(["Option", "What it does"], rows))
    return "\n\n".join(text) + "\n"


def _walk(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=path)
        for name in command.list_commands(context):
            try:
                child = command.get_command(context, name)
            except ModuleNotFoundError:
                continue  # a group that is announced and not there yet
            if child is not None:
                yield from _walk(child, f"{path} {name}")
    else:
        yield path, command


def environment(root: Path) -> str:
    """Variables that the source reads, found in its syntax trees."""
    found: dict[str, dict[str, set[str]]] = {}
    for path in sorted((root / "src").rglob("*.py")):
        for name, default in _reads(ast.parse(path.read_text(encoding="utf-8"))):
            row = found.setdefault(name, {"default": set(), "where": set()})
            row["default"] |= {default} if default else set()
            row["where"].add(str(path.relative_to(root / "src")))
    rows = [
        [
            f"`{name}`",
            ", ".join(f"`{one}`" for one in sorted(row["default"])),
            ", ".join(f"`{one}`" for one in sorted(row["where"])),
        ]
        for name, row in sorted(found.items())
    ]
    return (
        "\n\n".join(
            [
                "# Environment variables",
                "Generated from the source: every variable that `keel` or `slipway` reads. "
                "Credentials for registries come from Docker's configuration.",
                table(["Variable", "Default", "Read by"], rows),
            ]
        )
        + "\n"
    )


def _reads(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(name, literal default) of `os.environ[..]`, `.get(..)`, `os.getenv(..)` and `envvar=`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "os.environ":
            if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
                yield node.slice.value, ""
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in ("os.environ.get", "os.getenv", "environ.get") and node.args:
                name = node.args[0]
                if isinstance(name, ast.Constant) and isinstance(name.value, str):
                    rest = node.args[1] if len(node.args) > 1 else None
                    default = rest.value if isinstance(rest, ast.Constant) else ""
                    yield name.value, str(default or "")
            for word in node.keywords:
                if word.arg == "envvar" and isinstance(word.value, ast.Constant):
                    yield str(word.value.value), ""


def deploy_rules() -> str:
    """The rules of `slipway deploy check`."""
    from slipway.deploy.rules import RULES

    rows = [[f"`{rule.name}`", rule.severity.value, rule.about, rule.source] for rule in RULES]
    return (
        "\n\n".join(
            [
                "# Rules of deploy check",
                "Generated from `slipway.deploy.rules`. An error refuses the deployment; a warning "
                "does not.",
                table(["Rule", "Severity", "What it finds", "Where the rule comes from"], rows),
            ]
        )
        + "\n"
    )


def failures(root: Path) -> str:
    """Exit codes of both programs."""
    head = ["Exit code", "Failure", "When"]
    return (
        "\n\n".join(
            [
                "# Failures and exit codes",
                "Generated from the classes. A failure prints what happened and what to do, never "
                "a traceback; scripts may rely on the code.",
                "## slipway",
                table(head, _classes(root / "src/slipway/errors.py")),
                "## keel",
                table(head, _classes(root / "src/keel/errors.py")),
            ]
        )
        + "\n"
    )


def _classes(path: Path) -> list[tuple[str, str, str]]:
    """(exit code, name, first line of the docstring) of classes that state an exit code."""
    rows = []
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.ClassDef):
            continue
        for entry in node.body:
            if isinstance(entry, ast.Assign) and ast.unparse(entry.targets[0]) == "exit_code":
                text = (ast.get_docstring(node) or "").split("\n")[0]
                rows.append((ast.unparse(entry.value), f"`{node.name}`", text))
    return sorted(rows, key=lambda row: int(row[0]))


def metrics(root: Path) -> str:
    """What the `/metrics` of both servers say of themselves, each from its file."""
    parts = [
        "# Metrics",
        "Taken from what `/metrics` says of itself; tests compare each list with the program's. "
        "The engine's names are SGLang's where SGLang has the metric.",
    ]
    for program, path in METRICS.items():
        text = (root / path).read_text(encoding="utf-8")
        kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
        rows = [
            [f"`{name}`", kinds.get(name, ""), help_]
            for name, help_ in re.findall(r"^# HELP (\S+) (.*)$", text, re.MULTILINE)
        ]
        parts += [f"## {program}", table(["Metric", "Type", "What it counts"], rows)]
    return "\n\n".join(parts) + "\n"


def hardware_table(hardware: dict[str, Hardware]) -> str:
    """The accelerators that recipes may name."""
    rows = [
        [
            row.label,
            row.maker,
            f"`{row.arch}`",
            f"{row.memory} GB" if row.memory else "the machine's",
            f"`{row.image}`" if row.image else "",
        ]
        for row in hardware.values()
    ]
    return (
        "\n\n".join(
            [
                "# Hardware",
                "Generated from `docs/cookbook/hardware.toml`. An image for a device must carry "
                "the part of the tag in the last column, where there is one.",
                table(["Device", "Maker", "Architecture", "Memory", "Tag"], rows),
            ]
        )
        + "\n"
    )
