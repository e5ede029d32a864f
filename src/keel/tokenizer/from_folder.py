"""The tokenizer of a Hugging Face folder: tokenizer.json, its config, the chat template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers

from keel.errors import ModelError
from keel.tokenizer.tokenizer import Tokenizer, special_ids_of


def tokenizer_from_folder(path: Path) -> Tokenizer:
    """Read tokenizer.json (given itself, or in a folder) and the files beside it.

    Raises:
        ModelError: it is missing or damaged.
    """
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise ModelError(
            f"there is no tokenizer at {str(file)!r}",
            "give a tokenizer.json, or the folder that has one, with --tokenizer-path",
        )
    try:
        backend = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises plain Exception for all damage
        raise ModelError(f"{file} is damaged: {error}", "fetch the file anew") from error
    config = _read(file.with_name("tokenizer_config.json"))
    names = ("bos_token", "eos_token", "unk_token", "pad_token")
    special = {name: _text(config[name]) for name in names if config.get(name)}
    return Tokenizer(
        backend=backend,
        special_tokens=special,
        chat_template=_template(config, file.with_name("chat_template.jinja")),
        special_ids=special_ids_of(backend),
    )


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        value = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} is not readable JSON: {error}", "fetch the file anew") from error
    return value if isinstance(value, dict) else {}


def _text(token: Any) -> str:
    return str(token["content"]) if isinstance(token, dict) else str(token)


def _template(config: dict[str, Any], file: Path) -> str | None:
    if file.is_file():
        return file.read_text("utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):  # several named ones; `default` is the chat's
        template = next((one["template"] for one in template if one["name"] == "default"), None)
    return template
