"""The site as files: where links go, what is generated, what is left alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from keel.args import FLAGS, flags_of
from keel.args.router import RouterArgs
from slipway.cli import command as program
from slipway.cookbook import reference
from slipway.cookbook.load import load_hardware
from slipway.cookbook.markdown import render
from slipway.cookbook.site import build
from slipway.deploy.rules import RULES
from slipway.errors import StorageError
from unit.slipway.cookbook.kitchens import ROOT


def test_the_site_is_the_same_twice_and_replaces_itself(tmp_path: Path) -> None:
    site = build(ROOT, tmp_path / "a", program)
    assert site.broken == ()
    build(ROOT, tmp_path / "b", program)
    build(ROOT, tmp_path / "b", program)
    names = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*"))
    assert names == sorted(path.relative_to(tmp_path / "b") for path in (tmp_path / "b").rglob("*"))
    for name in names:
        if (tmp_path / "a" / name).is_file():
            assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(StorageError, match="no site built before"):
        build(ROOT, tmp_path, program)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_every_section_is_in_the_search_index(tmp_path: Path) -> None:
    build(ROOT, tmp_path / "site", program)
    text = (tmp_path / "site/search-index.js").read_text(encoding="utf-8")
    index = json.loads(text.removeprefix("window.slipwayIndex=").removesuffix(";\n"))
    found = {entry["u"] for entry in index}
    assert {"index.html", "models/kimi-k3.html", "models/glm-5.3.html#tool-calls"} <= found
    assert "guides/hisparse.html#minimax-m3" in found


def test_reference_pages_have_every_flag_rule_and_command() -> None:
    pages = reference.pages(ROOT, load_hardware(ROOT), program)
    for flag in FLAGS:
        assert all(f"`{name}`" in pages["keel-flags"] for name in flag.names), flag.name
        assert flag.help.replace("|", "\\|") in pages["keel-flags"]
    for flag in flags_of(RouterArgs):
        assert f"`{flag.name}`" in pages["keel-router-flags"], flag.name
    for rule in RULES:
        assert f"`{rule.name}`" in pages["deploy-rules"]
    for command in ("slipway cookbook check", "slipway deploy up", "slipway image plan"):
        assert f"## {command}\n" in pages["slipway-commands"]
    assert "`SLIPWAY_REGISTRY`" in pages["environment"]
    assert "`KEEL_CACHE`" in pages["environment"]
    assert "| 3 | `ConfigError` |" in pages["failures"]
    assert "| 3 | `ModelError` |" in pages["failures"]


def test_markdown_gives_anchors_safe_code_and_resolved_links() -> None:
    text = (
        "# A *b*\n\nFirst [x](y.md) and [gone](z.md).\n\n## Same\n\n## Same\n\n"
        "```bash run\necho '<b>' # c\n```\n\n| a |\n| --- |\n| `<i>` |\n\n<script>x</script>\n"
    )
    made = render(text, lambda href: {"y.md": "y.html"}.get(href))
    assert made.title == "A b"
    assert [heading.anchor for heading in made.headings] == ["a-b", "same", "same-2"]
    assert made.headings[0].body == "First x and gone."
    assert '<a href="y.html">x</a> and gone.' in made.html
    assert "<script>" not in made.html
    assert "&lt;b&gt;" in made.html
    assert '<span class="c"># c' in made.html
    assert made.code == (("bash run", "echo '<b>' # c\n", 9),)
    assert "<h1" not in made.below_title


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["glm-5.3", "--hw", "b200", "--strategy=balanced"], 0, "--enable-dp-attention"),
        (["zai-org/GLM-5.3", "--card", "speculative=off", "--as", "docker"], 0, "docker run --rm"),
        (["kimi-k3", "--hw", "h200", "--node", "1"], 0, "--node-rank 1"),
        (["smollm2-135m", "--set", "port=1"], 0, "--port 1"),
        (["glm-5.3", "--quant", "nvfp4"], 2, "Blackwell only"),
        (["glm-5.3", "--quant", "nvfp4"], 2, "nearest that work: hw=h200 quant=fp8"),
        (["glm-5.3", "--hw", "tpu"], 2, "none of h200, b200"),
        (["glm-5.3", "--gpu", "h200"], 2, "it has hw, quant, strategy"),
        (["glm-5.3", "--hw"], 2, "--hw has no value"),
        (["glm-5.3", "h200"], 2, "is no choice"),
        (["glm-5.3", "--card", "speculative"], 2, "has no value"),
        (["glm-5", "--hw", "h200"], 2, "did you mean glm-5.3"),
        (["kimi-k3", "--node", "9"], 2, "choose 0 to 0"),
        (["smollm2-135m", "--choices"], 0, "--card prefix-cache="),
        ([], 0, "minimax-m3"),
    ],
)
def test_the_command_line(
    words: list[str], code: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT / "docs")
    result = CliRunner().invoke(program, ["cookbook", "command", *words])
    error = result.exception
    text = result.output + (
        f"{getattr(error, 'what', error)} {getattr(error, 'remedy', '')}" if error else ""
    )
    assert says in text
    assert (getattr(error, "exit_code", 1) if result.exit_code else 0) == code
