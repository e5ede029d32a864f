"""What the check finds, in a copy of the repository's docs with one thing broken."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from slipway.cli import command as program
from slipway.cookbook.check import check
from unit.slipway.cookbook.kitchens import ROOT, line

# These are about a whole table: the line is that of its head.
NAMED_BY_TABLE = (
    "--tp-size is given twice",
    "bench/nothing.py is not in the repository",
    "the figure has no source",
    "keel router has no argument '--pd-disagg'",
)
RECIPES = "docs/cookbook/recipes"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A repository with the docs, and the sources that reference pages are made from."""
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    for name in ("src/keel/errors.py", "src/slipway/errors.py", "bench/cookbook_smollm2.py"):
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)
    for other in ("moonshotai", "zai-org/glm-5.3-flash.toml"):  # fewer commands to go through
        path = tmp_path / RECIPES / other
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for page in (*(tmp_path / "docs").glob("*.md"), *(tmp_path / RECIPES).glob("*/*.md")):
        page.write_text("# Page\n\nText.\n")
    return tmp_path


def broken(root: Path, name: str, old: str, new: str) -> tuple[Path, list[str]]:
    """The file with a change, and every finding of the check that is an error."""
    path = root / name
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    return path, [str(one) for one in check(root, program).findings if one.error]


def test_the_repositorys_own_cookbook_is_clean() -> None:
    done = check(ROOT, program)
    assert [str(one) for one in done.findings if one.error] == []
    assert done.commands > 10_000
    assert done.examples > 15


@pytest.mark.parametrize(
    ("name", "old", "new", "words"),
    [
        (
            f"{RECIPES}/huggingfacetb/smollm2-135m.toml",
            '"--chunked-prefill-size 1024"',
            '"--chunk-prefill-size 1024"',
            "did you mean",
        ),
        (
            f"{RECIPES}/huggingfacetb/smollm2-135m.toml",
            '"--chunked-prefill-size 1024"',
            '"--chunked-prefill-size many"',
            "not a whole number",
        ),
        (
            f"{RECIPES}/zai-org/glm-5.3.toml",
            '"--cuda-graph-max-bs-decode 128"',
            '"--cuda-graph-max-bs 128"',
            "sglang 0.5.20 has no flag --cuda-graph-max-bs",
        ),
        (
            f"{RECIPES}/zai-org/glm-5.3.toml",
            '"--enable-prefill-cp"',
            '"--enable-prefill-cp on"',
            "--enable-prefill-cp takes no value in sglang 0.5.20",
        ),
        (
            f"{RECIPES}/zai-org/glm-5.3.toml",
            '"SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK=512"',
            '"SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS=512"',
            "did you mean SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK",
        ),
        (
            f"{RECIPES}/zai-org/glm-5.3.toml",
            'reference = "docker.io/lmsysorg/sglang:v0.5.20"',
            'reference = "docker.io/lmsysorg/sglang:v0.5.19"',
            "0.5.20 is needed",
        ),
        (
            f"{RECIPES}/zai-org/glm-5.3.toml",
            'reference = "docker.io/lmsysorg/sglang:v0.5.20"',
            'reference = "docker.io/LMSYS/sglang:v0.5.20"',
            "is not an image name",
        ),
        (
            f"{RECIPES}/zai-org/glm-5.3.toml",
            'reference = "docker.io/lmsysorg/sglang:v0.5.20"',
            'reference = "docker.io/lmsysorg/sglang:v0.5.99"',
            "no list of the flags of sglang 0.5.99",
        ),
        (
            f"{RECIPES}/zai-org/glm-5.3.toml",
            'reference = "docker.io/lmsysorg/sglang-rocm:v0.5.20-rocm720-mi30x-20260920"',
            'reference = "docker.io/lmsysorg/sglang-rocm:v0.5.20-rocm720-mi35x-20260920"',
            "is no image for MI325X",
        ),
        (
            f"{RECIPES}/zai-org/glm-5.3.toml",
            '"--pd-disaggregation",',
            '"--pd-disagg",',
            "keel router has no argument '--pd-disagg'",
        ),
        (
            f"{RECIPES}/zai-org/glm-5.3.toml",
            'flags = ["--enable-hierarchical-cache"]',
            'flags = ["--enable-hierarchical-cache", "--tensor-parallel-size 4"]',
            "--tp-size is given twice",
        ),
        (
            f"{RECIPES}/huggingfacetb/smollm2-135m.toml",
            'source = "bench/cookbook_smollm2.py"',
            'source = "bench/nothing.py"',
            "bench/nothing.py is not in the repository",
        ),
        (
            f"{RECIPES}/huggingfacetb/smollm2-135m.toml",
            'source = "bench/cookbook_smollm2.py"',
            'source = ""',
            "the figure has no source",
        ),
    ],
)
def test_a_false_claim_is_found_with_its_file_and_line(
    name: str, old: str, new: str, words: str, copy: Path
) -> None:
    path, errors = broken(copy, name, old, new)
    assert errors, "nothing was found"
    assert any(words in error for error in errors), errors
    text = path.read_text(encoding="utf-8")
    numbers = [n for n, row in enumerate(text.splitlines(), 1) if new in row]
    told = next(error for error in errors if words in error)
    if words not in NAMED_BY_TABLE:
        assert any(f"{path}:{number}:" in told for number in numbers), told


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[there](nowhere.md)", "nowhere.md leads nowhere"),
        ("[there](../index.html#nothing)", "no such anchor"),
        ("[there](../gone.html)", "no such page"),
        ("```python\nprint(\n```", "no Python"),
        ("```bash\nif true; then\n```", "no shell"),
        ("```bash\nslipway image bild\n```", "bild"),
        ("```bash\nslipway image build --quick\n```", "--quick"),
        ("```bash\nslipway image plan --fast > plan.txt\n```", "--fast"),
        ("```bash\nslipway image\n```", "needs one of its commands"),
        ("```bash\nkeel serve --model-path x --prot 1\n```", "did you mean --port"),
        ("```bash\nkeel router --policy best\n```", "best"),
        ("```bash\nkeel bench serve --request-rate 0\n```", "--request-rate"),
        ("```bash\nkeel bench offline --model-path x --runs 0\n```", "--runs"),
        ("```bash\nsglang serve --model-path x --tp 8\n```", "has no flag --tp"),
    ],
)
def test_a_page_that_promises_too_much_is_found(text: str, words: str, copy: Path) -> None:
    shutil.rmtree(copy / RECIPES / "zai-org")
    (copy / "docs" / "guide.md").write_text(f"# Guide\n\n{text}\n", encoding="utf-8")
    errors = [str(one) for one in check(copy, program).findings if one.error]
    assert len(errors) == 1, errors
    assert words in errors[0]
    assert "guide" in errors[0]


def test_a_record_is_void_when_its_command_changes(copy: Path) -> None:
    shutil.rmtree(copy / RECIPES / "zai-org")
    recipe = copy / RECIPES / "huggingfacetb/smollm2-135m.toml"
    text = recipe.read_text(encoding="utf-8")
    assert not [one for one in check(copy, program).findings if "void" in one.what]
    changed = text.replace('"--max-running-requests 32"', '"--max-running-requests 31"')
    recipe.write_text(changed, encoding="utf-8")
    findings = [one for one in check(copy, program).findings if "void" in one.what]
    assert len(findings) == 6  # every record of the strategy that changed, none of the other
    assert not any(one.error for one in findings)


def test_the_command_fails_with_a_code_and_says_where(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = broken(copy, f"{RECIPES}/minimaxai/minimax-m3.toml", "--tp-size 8", "--tp-sze 8")
    monkeypatch.chdir(copy)
    result = CliRunner().invoke(program, ["cookbook", "check"])
    assert f"{path}:{line(path, '--tp-sze 8')}: " in result.output
    assert "1 error" in result.output
    assert result.exception is not None
    assert getattr(result.exception, "exit_code", 0) == 3
