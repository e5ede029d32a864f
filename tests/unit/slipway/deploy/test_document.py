"""A file that is broken or hostile gives one sentence with its name, and takes no time."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest

from slipway.deploy.check import check_files, read_files
from slipway.deploy.document import MAX_BYTES, parse_document, read_text
from slipway.errors import ConfigError, SlipwayError

BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 10)}]\n" for i in range(9)
)
ENGINE = "services: {a: {command: %s}}"

BROKEN = {
    "bomb": (BOMB.encode(), "values once aliases are written out"),
    "cycle": (b"services: &a {a: *a}", "contains itself"),
    "unknown alias": (b"services: *b", "names no anchor"),
    "deep": (b"[" * 100_000, "nested deeper"),
    "binary": (bytes(range(256)) * 40, "not UTF-8"),
    "zeros": (bytes(1000), "not YAML"),
    "large": (b"# x\n" * (5 * 2**20 // 4), "larger than"),
    "twice": (b"services: {a: {}}\nservices: {b: {}}", "is there twice"),
    "documents": (b"services: {a: {}}\n---\nx: 1", "a second document"),
    "merge": (b"services: {a: {<<: 3}}", "<< takes a table"),
    "key": (b"? [a]\n: b", "as a key"),
    "list": (b"[]", "no services"),
    "empty": (b"", "no services"),
    "services": (b"services: {a: 3}", "must be a table, not 3"),
    "many": (b"services: {" + b",".join(b"s%d: {}" % i for i in range(999)) + b"}", "at most 256"),
    "environment": (b"services: {a: {environment: 3}}", "environment must be"),
    "deploy": (b"services: {a: {deploy: [1]}}", "deploy must be a table"),
    "ports": (b"services: {a: {ports: 3}}", "ports must be a list"),
    "port": (b"services: {a: {ports: ['1:99999']}}", "ports go to 65535"),
    "all ports": (b"services: {a: {ports: ['1-65535:1-65535', '1-65535']}}", "more than 65536"),
    "extends itself": (b"services: {a: {extends: b}, b: {extends: a}}", "extends itself"),
    "extends nothing": (b"services: {a: {extends: z}}", "extends 'z', which"),
    "extends no file": (
        b"services: {a: {extends: {file: /dev/zero, service: a}}}",
        "/dev/zero is not a file",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_told_in_one_sentence_with_its_name(tmp_path: Path, name: str) -> None:
    content, says = BROKEN[name]
    path = tmp_path / "dockerserve-broken.yml"
    path.write_bytes(content)
    began = time.perf_counter()
    with pytest.raises(ConfigError) as caught:
        read_files([path], {})
    assert says in caught.value.what
    assert "dockerserve-broken.yml" in caught.value.what or "/dev/zero" in caught.value.what
    assert len(caught.value.what) < 700
    assert time.perf_counter() - began < 5


def test_what_is_no_file_is_told(tmp_path: Path) -> None:
    for path, says in ((tmp_path / "none.yml", "does not exist"), (tmp_path, "is not a file")):
        with pytest.raises(ConfigError) as caught:
            read_text(path)
        assert str(path) in caught.value.what
        assert says in caught.value.what


STRANGE = {
    "nothing": "services: {a: {}}",
    "all null": "services: {a: {image: , command: , ports: , volumes: , environment: , deploy: }}",
    "numbers": "name: 3\nservices: {1: {image: 2, command: [1, null, true], gpus: 7, pid: 4}}",
    "devices": "services: {a: {deploy: {resources: {reservations: {devices: [3, {count: x}]}}}}}",
    "huge size": ENGINE % "sglang serve --tp 99999999 --gpu-id-step 99999999 --port 123456789",
    "huge number": ENGINE % ("sglang serve --tp " + "9" * 5000),
    "many flags": ENGINE % ("sglang serve " + " ".join(f"--abcd-{i}" for i in range(20_000))),
    "long script": ENGINE % ('["bash", "-c", "' + "a;" * 100_000 + '"]'),
    "open quote": ENGINE % '[bash, -c, "sglang serve \'"]',
    "variables": "services: {a: {image: '" + "${a:-${b" * 20_000 + "'}}",
    "comment": "# " + "a" * 400_000 + "\n# only difference --x\nservices: {a: {image: b}}",
    "probe": "services: {a: {command: sglang serve, healthcheck: {test: \"'localhost'"
    + " " * 200_000
    + '"}}}',
}


@pytest.mark.parametrize("name", STRANGE)
def test_a_strange_file_is_judged_in_bounded_time(tmp_path: Path, name: str) -> None:
    path = tmp_path / "dockerserve-x.yml"
    path.write_text(STRANGE[name])
    began = time.perf_counter()
    with contextlib.suppress(SlipwayError):  # a sentence is as good as a judgement
        check_files(read_files([path], {}))
    assert time.perf_counter() - began < 10


def test_values_lines_and_comments_are_those_of_the_file() -> None:
    text = """# about it
x: &x {a: 1, b: 0x10, c: 1.5, d: yes, e: "1", f: }
services:
  one:
    <<: *x
    a: 2
    text: |
      # no comment
      1
  # inside
  two: [*x, !!str 3, ~, True]
"""
    document = parse_document(text, Path("f.yml"))
    x = {"a": 1, "b": 16, "c": 1.5, "d": "yes", "e": "1", "f": None}
    assert document.value["services"]["one"] == {**x, "a": 2, "text": "# no comment\n1\n"}
    assert document.value["services"]["two"] == [x, "3", None, True]
    assert document.lines["services", "two"] == 11
    assert [(each.line, each.text) for each in document.comments] == [
        (1, "about it"),
        (10, "inside"),
    ]


def test_a_file_of_the_largest_size_is_read(tmp_path: Path) -> None:
    path = tmp_path / "f.yml"
    head = "services: {a: {image: b}}\n"
    path.write_text(head + "#" * (MAX_BYTES - len(head)))
    assert [file.services[0].image for file in read_files([path], {})] == ["b"]
