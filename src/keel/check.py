"""`keel check -- COMMAND LINE`: what a server would do with it, without loading torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keel.args import FLAGS, Flag, ServerArgs, flags_of, parse
from keel.args.router import RouterArgs
from keel.args.router import parse as parse_router
from keel.errors import ArgumentError, ModelError
from keel.models.config import ModelConfig, config_from_hf
from keel.models.registry import check_architecture
from keel.weights.folder import read_json

_USAGE = "keel check [--json] -- keel serve --model-path PATH [FLAGS]"
_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_SECRET = ("api_key", "admin_api_key")


@dataclass(frozen=True)
class Verdict:
    """What a command line means.

    Args:
        command: `keel serve` or `keel router`.
        given: flags whose value differs from the default, by name.
        model: the shape of the model, where it is a folder that is here; else empty.
        notes: what follows from flags and model together, a sentence each.
    """

    command: str
    given: dict[str, Any]
    model: dict[str, Any]
    notes: tuple[str, ...]


def main(argv: Sequence[str]) -> None:
    """Print the verdict; a command line that a server would refuse is refused in its words.

    Raises:
        ArgumentError: a flag is unknown, malformed, or contradicts another flag or the model.
        ModelError: the model is not there, or of a kind that the engine does not know.
    """
    if argv[:1] in (["-h"], ["--help"]):
        print(f"usage: {_USAGE}")
        return
    own, line = (
        (argv[: argv.index("--")], argv[argv.index("--") + 1 :]) if "--" in argv else ([], argv)
    )
    if [one for one in own if one != "--json"]:
        raise ArgumentError(f"keel check has no argument {own[0]!r}", _USAGE)
    verdict = check(line)
    if own:
        print(json.dumps({"ok": True, **vars(verdict)}, indent=2, default=str))
        return
    rows = [f"{verdict.command}: would start"]
    for title, values in (("given", verdict.given), ("model", verdict.model)):
        rows += [f"\n{title}:", *(f"  {name:<32}{value}" for name, value in values.items())]
    print("\n".join([*rows, "", *verdict.notes]))


def check(line: Sequence[str]) -> Verdict:
    """The verdict on a command line, with or without `keel serve` before its flags.

    Raises:
        ArgumentError, ModelError: as `main`.
    """
    words = list(line)
    while words and not words[0].startswith("-"):
        if words[0] == "router":
            router = parse_router(words[1:])
            return Verdict("keel router", _given(router, flags_of(RouterArgs)), {}, ())
        if words.pop(0) == "serve":
            break
    if words[:2] == ["-m", "keel"]:
        return check(words[2:])
    args = parse(words)
    given = _given(args, FLAGS)
    path = Path(args.model_path).expanduser()
    if not path.exists():
        raise ModelError(
            f"--model-path {args.model_path}: there is no such file or folder",
            "make sure of the path; `keel models fetch` prints one",
        )
    if not path.is_dir():
        size = path.stat().st_size / 1e6
        note = f"{path.name}, {size:.0f} MB: its header is read at start, and not here"
        return Verdict("keel serve", given, {}, (note,))
    generation = path / "generation_config.json"
    config = config_from_hf(
        read_json(path / "config.json"), read_json(generation) if generation.exists() else {}
    )
    check_architecture(config)
    if not any(path.glob("*.safetensors")):
        raise ModelError(f"{path} has no *.safetensors", "give a folder with safetensors weights")
    return Verdict("keel serve", given, _shape(config), _notes(args, config))


def _given(args: object, flags: Sequence[Flag]) -> dict[str, Any]:
    found = {}
    for entry in flags:
        value = getattr(args, entry.field)
        if entry.required or value != entry.default:
            found[entry.name] = "(set)" if entry.field in _SECRET else value
    return found


def _shape(config: ModelConfig) -> dict[str, Any]:
    names = ("architecture", "num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim")
    shape = {name: getattr(config, name) for name in (*names, "vocab_size", "dtype")}
    if config.experts is not None:
        shape["experts"] = f"{config.experts.per_token} of {config.experts.count}"
    return {**shape, "max_position": config.max_position}


def _notes(args: ServerArgs, config: ModelConfig) -> tuple[str, ...]:
    context = args.context_length or config.max_position
    longest = min(context, args.max_total_tokens or context)
    notes = [f"a request holds {longest} tokens at most, prompt and answer together"]
    if context > config.max_position:
        notes.append(
            f"--context-length {context} is more than the {config.max_position} positions that the "
            "model was trained with: answers get worse beyond them"
        )
    if args.dtype != "auto":
        width = _BYTES[args.dtype]
        token = 2 * config.num_layers * config.num_kv_heads * config.head_dim * width
        pool = args.max_total_tokens
        size = f"; {pool * token / 2**20:.0f} MiB for {pool} tokens" if pool else ""
        notes.append(f"the KV pool takes {token} bytes a token in {args.dtype}{size}")
    return tuple(notes)
