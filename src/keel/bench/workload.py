"""What is asked: prompts of a file or synthetic ones, and when each is sent."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keel.args.bench import LoadArgs
from keel.errors import ArgumentError

Message = dict[str, Any]
# A text of so many tokens, from a source of randomness.
Writer = Callable[[random.Random, int], str]

# Each is one token, with the space before it, in nearly every vocabulary of English.
_WORDS = [
    "time",
    "year",
    "people",
    "way",
    "day",
    "man",
    "thing",
    "woman",
    "life",
    "child",
    "world",
    "school",
    "state",
    "family",
    "student",
    "group",
    "country",
    "problem",
    "hand",
    "part",
    "place",
    "case",
    "week",
    "company",
    "system",
    "program",
    "question",
    "work",
    "number",
    "night",
    "point",
    "home",
    "water",
    "room",
    "mother",
    "area",
    "money",
    "story",
    "fact",
    "month",
    "lot",
    "right",
    "study",
    "book",
    "eye",
    "job",
    "word",
    "business",
    "issue",
    "side",
    "kind",
    "head",
    "house",
    "service",
    "friend",
    "father",
    "power",
    "hour",
    "game",
    "line",
    "end",
    "member",
    "law",
    "car",
    "city",
    "name",
    "team",
    "minute",
    "idea",
    "body",
    "back",
    "parent",
    "face",
    "level",
    "office",
    "door",
    "health",
    "person",
    "art",
    "war",
]


@dataclass(frozen=True)
class Prompt:
    """One request to send.

    Args:
        text: of the user.
        prefix: what comes before it, shared with other prompts.
        messages: a conversation instead of a text; of files only.
        new_tokens: the most tokens of the answer.
    """

    text: str
    new_tokens: int
    prefix: str = ""
    messages: tuple[Message, ...] = ()


def words(rng: random.Random, count: int) -> str:
    """`count` common words: about as many tokens for any English vocabulary."""
    return " ".join(rng.choices(_WORDS, k=count))


def exact(encode: Callable[[str], list[int]], decode: Callable[[list[int]], str]) -> Writer:
    """Texts that a tokenizer makes exactly so many tokens of."""

    def write(rng: random.Random, count: int) -> str:
        text = words(rng, count + 8)
        for _ in range(8):
            ids = encode(text)
            if len(ids) == count:
                break
            missing = count - len(ids)
            text = decode(ids[:count]) if missing < 0 else f"{text} {words(rng, missing)}"
        return text

    return write


def prompts(args: LoadArgs, run: int, write: Writer = words) -> list[Prompt]:
    """The prompts of one run; other runs ask others of the same kind.

    Raises:
        ArgumentError: the file of `--dataset-path` cannot be read as one.
    """
    rng = random.Random(f"{args.seed}-{run}")

    def length(most: int) -> int:
        return rng.randint(max(1, round(most * args.random_range_ratio)), most)

    if args.dataset_path:
        rows = _read(Path(args.dataset_path).expanduser())
        rng.shuffle(rows)
        chosen = [rows[index % len(rows)] for index in range(args.num_prompts)]
        return [_of_row(row, length(args.random_output_len)) for row in chosen]
    prefixes = [
        write(rng, args.random_prefix_len) if args.random_prefix_len else ""
        for _ in range(args.random_prefix_groups)
    ]
    return [
        Prompt(
            write(rng, length(args.random_input_len)),
            length(args.random_output_len),
            prefixes[index % len(prefixes)],
        )
        for index in range(args.num_prompts)
    ]


def arrivals(args: LoadArgs, run: int) -> list[float]:
    """Seconds from the start at which each prompt is sent."""
    rng = random.Random(f"gaps-{args.seed}-{run}")
    now, found = 0.0, []
    for _ in range(args.num_prompts):
        found.append(now)
        now += rng.expovariate(args.request_rate) if args.request_rate < float("inf") else 0.0
    return found


def _read(path: Path) -> list[Any]:
    try:
        text = path.read_text(encoding="utf-8")
        rows = json.loads(text) if text.lstrip()[:1] == "[" else _lines(text)
    except (OSError, ValueError) as error:
        raise ArgumentError(
            f"--dataset-path {path}: {error}", "give JSON lines, or a JSON array of conversations"
        ) from error
    rows = [row for row in rows if _is_usable(row)]
    if not rows:
        raise ArgumentError(
            f"--dataset-path {path} has no row with a prompt",
            'rows look like {"prompt": "...", "max_tokens": 64} or {"messages": [...]}',
        )
    return rows


def _lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def _is_usable(row: Any) -> bool:
    return isinstance(row, dict) and bool(
        row.get("prompt") or row.get("messages") or _turns(row.get("conversations"))
    )


def _turns(turns: Any) -> Sequence[Any]:
    """The turns of a ShareGPT conversation, if a person begins it."""
    begins = isinstance(turns, list) and turns and isinstance(turns[0], dict)
    return turns if begins and turns[0].get("from") in ("human", "user") else ()


def _of_row(row: dict[str, Any], new: int) -> Prompt:
    new = int(row.get("max_tokens") or new)
    if row.get("messages"):
        return Prompt("", new, messages=tuple(row["messages"]))
    if row.get("prompt"):
        return Prompt(str(row["prompt"]), new)
    return Prompt(str(_turns(row["conversations"])[0]["value"]), new)
