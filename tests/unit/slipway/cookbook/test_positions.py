"""Lines of keys, items and tables."""

from __future__ import annotations

import tomllib

from hypothesis import given
from hypothesis import strategies as st

from slipway.cookbook.positions import line_of, positions

TEXT = '''# head
title = "a"
[one]
"quoted.key" = 1   # a "comment" = 3
dotted.inner = """
two = 2
"""
[[cells]]
flags = [
    "--a",  # [ not an array
    '--b ] {"x": 1}',
]
match = { hw = ["h1", "h2"], quant = "q" }
[[cells]]
flags = []
[cells.sub]
x = 1
[[cells.disable]]
when = 1
[[cells.disable]]
when = 2
'''


def test_every_kind_of_place_has_its_line() -> None:
    tomllib.loads(TEXT)
    found = positions(TEXT)
    assert found[("title",)] == 2
    assert found[("one",)] == 3
    assert found[("one", "quoted.key")] == 4
    assert found[("one", "dotted", "inner")] == 5
    assert found[("cells", 0)] == 8
    assert found[("cells", 0, "flags", 0)] == 10
    assert found[("cells", 0, "flags", 1)] == 11
    assert found[("cells", 0, "match", "hw", 1)] == 13
    assert found[("cells", 0, "match", "quant")] == 13
    assert found[("cells", 1)] == 14
    assert found[("cells", 1, "sub", "x")] == 17
    assert found[("cells", 1, "disable", 1, "when")] == 21


def test_an_absent_path_has_the_line_of_its_parent() -> None:
    found = positions(TEXT)
    assert line_of(found, ("cells", 1, "match", "hw")) == 14
    assert line_of(found, ("nothing",)) == 1


_KEY = st.text("abz-_09", min_size=1, max_size=4)
_STRING = st.text(st.characters(blacklist_categories=["Cs", "Cc"]), max_size=12)


@given(st.dictionaries(_KEY, st.lists(_STRING, max_size=4), min_size=1, max_size=5))
def test_strings_of_any_content_do_not_shift_lines(table: dict[str, list[str]]) -> None:
    lines: list[str] = []
    expected: dict[tuple[str | int, ...], int] = {}
    for key, values in table.items():
        lines.append(f"{key} = [")
        expected[(key,)] = len(lines)
        for index, value in enumerate(values):
            escaped = value.replace("\\", "\\\\").replace('"', '\\"')
            lines.append(f'  "{escaped}", # "')
            expected[(key, index)] = len(lines)
        lines.append("]")
    text = "\n".join(lines)
    assert tomllib.loads(text) == table
    assert positions(text) == expected
