"""Write the list of flags and environment variables that an upstream release knows.

    python docs/cookbook/upstream/update.py sglang==0.5.20 [NAME==VERSION ...]

Fetches the public wheel through pip and reads its source as a syntax tree, without running any of
it. Only names and whether a flag takes a value are kept: facts, not text.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
# Where a package keeps its flags (whole files, or folders with a slash at the end).
FLAGS = {
    "sglang": ("sglang/srt/server_args.py", "sglang/srt/arg_groups/fields/"),
}
# Actions of upstream's argparse that take no value.
_SWITCHES = ("StoreTrue", "StoreConst", "store_true", "store_const", "BooleanOptional")


def fetch(requirement: str, folder: Path) -> Path:
    """The wheel of a release, as pip is configured to find it."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    subprocess.run([*command, "--dest", str(folder), requirement], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def text_of(node: ast.expr | None) -> str | None:
    """A literal string, or None; a prefix that is empty by default is left out of an f-string."""
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) or "" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """The value of a keyword argument."""
    return next((word.value for word in call.keywords if word.arg == name), None)


def is_switch(kind: ast.expr, argument: ast.Call | None) -> bool:
    """Whether a field's flag takes no value: a plain bool without a parser of its own."""
    if argument is not None and keyword(argument, "action") is not None:
        named = ast.unparse(keyword(argument, "action") or kind)
        return any(switch in named for switch in _SWITCHES)
    if argument is not None and (keyword(argument, "nargs") or keyword(argument, "type_parser")):
        return False
    return ast.unparse(kind) in ("bool", "Optional[bool]", "bool | None")


def fields(tree: ast.Module) -> Iterator[tuple[str, list[str], bool]]:
    """(name, aliases, switch) of every `field: A[type, Arg(...) or "help"]`."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        note = node.annotation
        if not isinstance(note, ast.Subscript) or ast.unparse(note.value) not in ("A", "Annotated"):
            continue
        if not isinstance(note.slice, ast.Tuple):
            continue
        kind, *rest = note.slice.elts
        argument = next(
            (one for one in rest if isinstance(one, ast.Call) and ast.unparse(one.func) == "Arg"),
            None,
        )
        hidden = argument is not None and keyword(argument, "no_cli")
        if isinstance(hidden, ast.Constant) and hidden.value is True:
            continue
        name = argument and text_of(keyword(argument, "cli_name"))
        aliases = keyword(argument, "aliases") if argument is not None else None
        others = [text_of(one) or "" for one in getattr(aliases, "elts", [])]
        yield name or "--" + node.target.id.replace("_", "-"), others, is_switch(kind, argument)


def added(tree: ast.Module) -> Iterator[tuple[str, list[str], bool]]:
    """The same of every `parser.add_argument("--name", ...)`."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not ast.unparse(node.func).endswith(".add_argument"):
            continue
        names = [text for text in map(text_of, node.args) if text and text.startswith("--")]
        if names:
            action = ast.unparse(keyword(node, "action") or ast.Constant(""))
            yield names[0], names[1:], any(switch in action for switch in _SWITCHES)


def variables(name: str, text: str, tree: ast.Module) -> Iterator[str]:
    """Variables of the package's own: declared in `class Envs`, or named in a string."""
    own = re.compile(rf"""["']({name.partition("-")[0].upper()}_[A-Z0-9_]+)["']""")
    yield from own.findall(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == "Envs":
            for entry in node.body:
                if isinstance(entry, ast.Assign) and isinstance(entry.targets[0], ast.Name):
                    yield entry.targets[0].id


def read(name: str, wheel: Path) -> tuple[dict[str, tuple[list[str], bool]], list[str]]:
    """Flags and variables of a wheel."""
    flags: dict[str, tuple[list[str], bool]] = {}
    env: set[str] = set()
    with zipfile.ZipFile(wheel) as archive:
        for member in sorted(archive.namelist()):
            if not member.endswith(".py"):
                continue
            text = archive.read(member).decode("utf-8-sig")
            tree = ast.parse(text)
            env |= set(variables(name, text, tree))
            folders = tuple(place for place in FLAGS[name] if place.endswith("/"))
            if member not in FLAGS[name] and not (folders and member.startswith(folders)):
                continue
            for flag, aliases, switch in (*fields(tree), *added(tree)):
                flags[flag] = (aliases, switch)
    return flags, sorted(env)


def write(name: str, version: str, wheel: Path) -> None:
    """The committed list of one release."""
    flags, env = read(name, wheel)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    lines = [
        f"# Flags and environment variables that {name} {version} knows. Written by update.py.",
        f'version = "{version}"',
        f'source = "{wheel.name}"',
        f'sha256 = "{digest}"',
        "",
        "# flag = [takes a value, other spellings]",
        "[flags]",
    ]
    for flag, (aliases, switch) in sorted(flags.items()):
        words = ", ".join(["false" if switch else "true", *(f'"{one}"' for one in aliases)])
        lines.append(f"{flag} = [{words}]")
    lines += ["", "[env]", "names = [", *(f'    "{one}",' for one in env), "]"]
    path = HERE / f"{name}-{version}.toml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{path.name}: {len(flags)} flags, {len(env)} variables")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("requirements", nargs="+", metavar="NAME==VERSION")
    for requirement in parser.parse_args().requirements:
        name, _, version = requirement.partition("==")
        with tempfile.TemporaryDirectory(prefix="upstream-wheel-") as folder:
            write(name, version, fetch(requirement, Path(folder)))


if __name__ == "__main__":
    main()
