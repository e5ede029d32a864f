"""From choices to a command: by hand-written vectors, and by properties over every choice."""

from __future__ import annotations

import shlex

import pytest

from slipway.cookbook.generate import ChoiceError, generate, nearest, reachable
from unit.slipway.cookbook.kitchens import load

KITCHEN = load().kitchen
TAIL = "--host 0.0.0.0 --port 30000"
MODEL = "sglang serve --model-path example/Lab"


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        (
            {},
            f"{MODEL} --tp-size 8 --speculative-algorithm EAGLE --speculative-num-steps 5 "
            f"--mem-fraction-static 0.8 --reasoning-parser auto {TAIL}",
        ),
        (
            {"parsers": "off", "speculative": "off"},
            f"{MODEL} --tp-size 8 --mem-fraction-static 0.8 {TAIL}",
        ),
        (
            {"hw": "b200", "speculative": "draft", "port": "8000"},
            f"{MODEL} --tp-size 8 --speculative-algorithm DRAFT "
            """--speculative-config '{"block": 8}' --mem-fraction-static 0.8 """
            "--reasoning-parser auto --host 0.0.0.0 --port 8000",
        ),
        (
            {"hw": "b200", "quant": "nvfp4", "parsers": "off"},
            f"{MODEL}-NVFP4 --tp-size 8 --quantization modelopt_fp4 {TAIL}",
        ),
    ],
)
def test_flags_are_those_of_the_cell_changed_by_the_layers(
    choices: dict[str, str], words: str
) -> None:
    assert list(generate(KITCHEN, choices).nodes[0].words) == shlex.split(words)


def test_every_node_has_its_own_command_and_the_router_comes_along() -> None:
    made = generate(KITCHEN, {"strategy": "throughput", "head": "10.0.0.1:5000", "cache": "store"})
    ranks = [node.words[node.words.index("--node-rank") + 1] for node in made.nodes]
    assert ranks == ["0", "1"]
    for node in made.nodes:
        assert node.words[node.words.index("--nnodes") + 1] == "2"
        assert node.words[node.words.index("--dist-init-addr") + 1] == "10.0.0.1:5000"
    assert made.env == (("NCCL_MNNVL_ENABLE", "1"), ("STORE_CONFIG", "/etc/store file.json"))
    assert made.companions == (("Router", ("keel", "router", "--port", "30000")),)
    assert made.notes == ("Two machines.",)


def test_images_are_looked_up_by_the_most_specific_match() -> None:
    assert generate(KITCHEN, {"hw": "b200"}).image == "lmsysorg/sglang:v0.5.20"
    special = generate(KITCHEN, {"hw": "b200", "quant": "nvfp4"})
    assert special.image == "lmsysorg/sglang:dev-lab"
    assert special.warnings == (
        "dev-lab can move",
        "lmsysorg/sglang:dev-lab states no version; 0.5.20 is needed: the NVFP4 loader",
    )


@pytest.mark.parametrize(
    ("choices", "reason", "near"),
    [
        (
            {"quant": "nvfp4"},
            "NVFP4 kernels exist for Blackwell only",
            {"hw": "h200", "quant": "fp8", "strategy": "latency"},
        ),
        (
            {"hw": "mi355x", "strategy": "throughput"},
            "no recipe for MI355X, FP8, Throughput",
            {"hw": "mi355x", "quant": "fp8", "strategy": "latency"},
        ),
        (
            {"hw": "mi355x", "speculative": "draft"},
            "Speculation, Draft model: the draft runs on CUDA only",
            {"hw": "mi355x", "quant": "fp8", "strategy": "latency", "speculative": "recipe"},
        ),
        (
            {"strategy": "throughput", "speculative": "draft"},
            "Speculation, Draft model: a draft cannot run beside DP attention",
            {"hw": "h200", "quant": "fp8", "strategy": "throughput", "speculative": "recipe"},
        ),
    ],
)
def test_an_invalid_choice_gives_the_reason_and_what_is_nearest(
    choices: dict[str, str], reason: str, near: dict[str, str]
) -> None:
    with pytest.raises(ChoiceError) as caught:
        generate(KITCHEN, choices)
    assert caught.value.reasons == (reason,)
    assert caught.value.nearest[0] == near
    generate(KITCHEN, {**choices, **near})


def test_unknown_ids_and_options_name_those_that_exist() -> None:
    with pytest.raises(ChoiceError, match="it has hw, quant"):
        generate(KITCHEN, {"gpu": "h200"})
    with pytest.raises(ChoiceError, match="none of h200, b200, mi355x"):
        generate(KITCHEN, {"hw": "h20"})


def test_a_kept_dimension_stays() -> None:
    wanted = {"hw": "mi355x", "quant": "nvfp4", "strategy": "latency"}
    assert nearest(KITCHEN.recipe, wanted, keep="hw")[0]["hw"] == "mi355x"
    assert nearest(KITCHEN.recipe, wanted, keep="quant")[0]["quant"] == "nvfp4"


def test_exactly_the_reachable_combinations_have_a_command() -> None:
    import itertools

    recipe = KITCHEN.recipe
    groups = (*recipe.dimensions, *recipe.layers)
    good, bad = [], 0
    for values in itertools.product(*([o.id for o in group.options] for group in groups)):
        choices = dict(zip((group.id for group in groups), values, strict=True))
        try:
            generate(KITCHEN, choices)
        except ChoiceError:
            bad += 1
        else:
            good.append(choices)
    assert good == list(reachable(recipe))
    assert len(good) == 2 * 3 * 4 + 1 * 2 * 4 + 2 * 3 * 4 + 1 * 2 * 4
    assert bad == 12 * 2 * 3 * 2 - len(good)


def test_the_hash_follows_image_flags_and_environment_and_not_the_readers_values() -> None:
    base = generate(KITCHEN, {}).hash
    assert generate(KITCHEN, {"port": "1234"}).hash == base
    others = {
        generate(KITCHEN, {"speculative": "off"}).hash,
        generate(KITCHEN, {"cache": "store"}).hash,
        generate(KITCHEN, {"hw": "mi355x"}).hash,
    }
    assert len(others | {base}) == 4
