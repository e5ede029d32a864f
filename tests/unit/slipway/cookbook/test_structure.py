"""Broken recipes: each is refused with its file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipway.cookbook.load import RecipeError
from unit.slipway.cookbook.kitchens import changed, line, load

# what is broken, old text, new text, the text on whose line the error is, words of the message
BROKEN = [
    ("TOML", 'vendor = "example"', 'vendor = "example', 'vendor = "example', "Illegal character"),
    ("unknown key", 'status = "not-run"', 'state = "x"', 'state = "x"', "state"),
    ("wrong type", "nodes = 2", 'nodes = "2"', 'nodes = "2"', "Expected `int`"),
    ("unknown engine", 'engine = "sglang"', 'engine = "vim"', 'engine = "vim"', "engines.toml"),
    (
        "unknown hardware",
        '{ id = "mi355x", label',
        '{ id = "mi999", label',
        "mi999",
        "hardware.toml",
    ),
    (
        "two cells for one choice",
        'match = { hw = "h200", quant = "fp8", strategy = "throughput" }',
        'match = { hw = "h200", quant = "fp8", strategy = ["latency", "throughput"] }',
        '[[cells]]\nmatch = { hw = "h200", quant = "fp8", strategy = [',
        "two cells match hw=h200 quant=fp8 strategy=latency",
    ),
    (
        "unreachable cell: an option that is not offered",
        'match = { hw = "mi355x", quant = "fp8"',
        'match = { hw = "mi300x", quant = "fp8"',
        'match = { hw = "mi300x", quant = "fp8"',
        "can never match",
    ),
    (
        "unreachable cell: a rule hides it",
        'when = { hw = ["h200", "mi355x"], quant = "nvfp4" }',
        'when = { hw = "b200", quant = "nvfp4" }',
        '[[cells]]\nmatch = { hw = "b200"',
        "unreachable",
    ),
    (
        "a dimension left out",
        'match = { hw = "mi355x", quant = "fp8", strategy = "latency" }',
        'match = { hw = "mi355x", quant = "fp8" }',
        'match = { hw = "mi355x", quant = "fp8" }',
        "says nothing about 'strategy'",
    ),
    (
        "a card that disables itself by its own option",
        'when = { hw = "mi355x" }\nbecause',
        'when = { speculative = "draft" }\nbecause',
        "[[cards.options.disable]]\nwhen = { speculative",
        "disables itself",
    ),
    (
        "a card that disables itself in every cell",
        'when = { hw = "mi355x" }\nbecause',
        'when = { hw = ["h200", "b200", "mi355x"] }\nbecause',
        '[[cards.options]]\nid = "draft"',
        "disables itself",
    ),
    (
        "a rule about a later card",
        'when = { hw = "mi355x" }\nbecause',
        'when = { cache = "store" }\nbecause',
        "[[cards.options.disable]]\nwhen = { cache",
        "applied later",
    ),
    (
        "a missing image",
        "[[images]]\nmatch = {}",
        '[[images]]\nmatch = { hw = "h200" }',
        '[[cells]]\nmatch = { hw = ["h200", "b200"], quant = "fp8"',
        "no image for hw=b200",
    ),
    (
        "two images for one choice",
        'match = { hw = "mi355x" }\nreference',
        "match = {}\nreference",
        '[[images]]\nmatch = {}\nreference = "lmsysorg/sglang-rocm',
        "two images match",
    ),
    (
        "a default that has no cell",
        'default = "fp8"',
        'default = "nvfp4"',
        'default = "h200"',
        "the defaults have no cell",
    ),
    (
        "an option without a cell",
        '{ id = "nvfp4", label = "NVFP4" }',
        '{ id = "nvfp4", label = "NVFP4" }, { id = "int4", label = "INT4" }',
        '{ id = "int4"',
        "no cell has quant 'int4'",
    ),
    ("a flag without dashes", '"--tp-size 16"', '"tp-size 16"', '"tp-size 16"', "is no flag"),
    ("a flag twice", '"--tp-size 16"', '"--tp-size 16", "--tp-size 8"', '"--tp-size 16"', "twice"),
    (
        "a blank that nobody fills in",
        '"STORE_CONFIG={{store}}"',
        '"STORE_CONFIG={{stoer}}"',
        "{{stoer}}",
        "nobody fills in",
    ),
    ("a variable without a value", '"NCCL_MNNVL_ENABLE=1"', '"NCCL"', '"NCCL"', "is no variable"),
    (
        "a strip rule that strips nothing",
        '"--speculative-*"]\nflags',
        '"--speculatve-*"]\nflags',
        "--speculatve-*",
        "strips nothing",
    ),
    (
        "a default that can be disabled",
        'default = "recipe"',
        'default = "draft"',
        "[[cards.options.disable]]\nwhen = { hw",
        "can be disabled",
    ),
    ("a default that is no option", 'default = "auto"', 'default = "on"', 'default = "on"', "none"),
    ("an id twice", 'id = "cache"', 'id = "parsers"', 'id = "parsers"\ntitle = "Cache"', "taken"),
]


@pytest.mark.parametrize(("old", "new", "place", "words"), [row[1:] for row in BROKEN],
                         ids=[row[0] for row in BROKEN])  # fmt: skip
def test_a_broken_recipe_is_refused_with_file_and_line(
    tmp_path: Path, old: str, new: str, place: str, words: str
) -> None:
    path = changed(tmp_path, old, new)
    with pytest.raises(RecipeError) as caught:
        load(path)
    first = caught.value.what.splitlines()[0]
    assert first.startswith(f"{path}:{line(path, place)}:"), caught.value.what
    assert words in caught.value.what
    assert caught.value.exit_code == 3


def test_the_lab_recipe_itself_is_whole() -> None:
    assert load().recipe.title == "Lab"
