"""The rule engine in JavaScript gives what the one in Python gives, choice by choice."""

from __future__ import annotations

import itertools
import json
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slipway.cookbook.generate import ChoiceError, generate
from slipway.cookbook.inline import inline
from slipway.cookbook.load import Page, load_pages
from slipway.cookbook.render import FORMS, render
from unit.slipway.cookbook.kitchens import ROOT, load

ENGINE = ROOT / "src/slipway/cookbook/assets/engine.js"
RUN = """
const cookbook = require(process.argv[1]);
const { data, vectors } = JSON.parse(require("fs").readFileSync(0, "utf8"));
const answers = vectors.map((choices) => {
  try {
    const made = cookbook.generate(data, choices);
    const texts = {};
    for (const form of Object.keys(cookbook.FORMS)) {
      texts[form] = made.nodes.map((_, node) => cookbook.render(data, made, form, node));
    }
    return { made, texts };
  } catch (error) {
    if (!(error instanceof cookbook.ChoiceError)) throw error;
    return { reasons: error.reasons, nearest: error.nearest };
  }
});
process.stdout.write(JSON.stringify(answers));
"""
VALUES: list[dict[str, str]] = [
    {},
    {"host": "::1", "port": "8000"},
]


def answer(page: Page, choices: dict[str, str]) -> dict[str, Any]:
    """What Python says, in the shape of the JavaScript."""
    try:
        made = generate(page.kitchen, choices)
    except ChoiceError as error:
        return {"reasons": list(error.reasons), "nearest": list(error.nearest)}
    plain = msgspec.to_builtins(made)
    del plain["hash"]
    texts = {
        form: [render(page.kitchen, made, form, node) for node in range(len(made.nodes))]
        for form in FORMS
    }
    return {"made": plain, "texts": texts}


def in_javascript(page: Page, vectors: list[dict[str, str]]) -> list[dict[str, Any]]:
    """What node says."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    text = json.dumps({"data": inline(page.kitchen), "vectors": vectors})
    done = subprocess.run(
        [node, "-e", RUN, str(ENGINE)], input=text, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    for one in answers:
        if one.get("made", {}).get("verified"):
            del one["made"]["verified"]["key"]
    return answers


def every_choice(page: Page) -> list[dict[str, str]]:
    """The product of all options, valid or not."""
    groups = (*page.recipe.dimensions, *page.recipe.layers)
    ids = [group.id for group in groups]
    options = [[option.id for option in group.options] for group in groups]
    return [dict(zip(ids, one, strict=True)) for one in itertools.product(*options)]


def compare(page: Page, vectors: list[dict[str, str]]) -> None:
    theirs = in_javascript(page, vectors)
    for choices, other in zip(vectors, theirs, strict=True):
        ours = answer(page, choices)
        if "made" in ours and ours["made"]["verified"]:
            del ours["made"]["verified"]["choices"]
        assert other == json.loads(json.dumps(ours)), choices


@pytest.mark.parametrize("values", VALUES, ids=["defaults", "filled"])
def test_the_lab_recipe_over_every_choice(values: dict[str, str]) -> None:
    page = load()
    vectors = [choice | values for choice in every_choice(page)]
    compare(page, [*vectors, {"store": 'it\'s $HOME "here" \\ é', "cache": "store"}])


@pytest.mark.parametrize("slug", sorted(load_pages(ROOT)))
def test_every_recipe_over_its_choices(slug: str) -> None:
    page = load_pages(ROOT)[slug]
    vectors = every_choice(page)
    # Valid and invalid ones; the browser test goes through every reachable one.
    compare(page, random.Random(slug).sample(vectors, min(400, len(vectors))))


def test_the_golden_vectors(request: pytest.FixtureRequest) -> None:
    """Written by hand and read by both engines: what neither may change silently."""
    golden = json.loads((Path(__file__).parent / "data" / "golden.json").read_text())
    page = load()
    theirs = in_javascript(page, [vector["choices"] for vector in golden])
    for vector, other in zip(golden, theirs, strict=True):
        for both in (other, answer(page, vector["choices"])):
            if "reasons" in vector:
                assert both["reasons"] == vector["reasons"]
                assert both["nearest"][0] == vector["nearest"]
            else:
                for form, text in vector["texts"].items():
                    assert both["texts"][form][vector.get("node", 0)] == "\n".join(text)
