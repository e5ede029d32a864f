"""Checkpoints in Hugging Face folders: config.json, safetensors (sharded or not), tokenizer."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keel.errors import ModelError
from keel.models.config import ModelConfig, config_from_hf

if TYPE_CHECKING:
    import torch

    from keel.tokenizer.tokenizer import Tokenizer

INDEX = "model.safetensors.index.json"


class FolderCheckpoint:
    """A `Checkpoint` in a folder."""

    def __init__(self, path: Path) -> None:
        self._path = path
        config = read_json(path / "config.json")
        generation = path / "generation_config.json"
        self._config = config_from_hf(config, read_json(generation) if generation.exists() else {})
        self._files = _locate(path)
        self._handles: dict[Path, Any] = {}

    @property
    def path(self) -> Path:
        return self._path

    @property
    def config(self) -> ModelConfig:
        return self._config

    def names(self) -> Collection[str]:
        return self._files.keys()

    def tensor(self, name: str) -> torch.Tensor:
        if name not in self._files:
            raise ModelError(f"{self._path} has no tensor {name!r}", "fetch the checkpoint anew")
        file = self._files[name]
        if file not in self._handles:
            self._handles[file] = _open(file)
        tensor: torch.Tensor = self._handles[file].get_tensor(name)
        return tensor

    def tokenizer(self) -> Tokenizer:
        from keel.tokenizer.from_folder import tokenizer_from_folder

        return tokenizer_from_folder(self._path)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        ModelError: the file is missing, or holds no JSON object.
    """
    try:
        value = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ModelError(
            f"{path.parent} has no {path.name}",
            "give a GGUF file, or a whole Hugging Face folder "
            "(config.json, *.safetensors, tokenizer.json)",
        ) from None
    except (ValueError, OSError) as error:
        raise ModelError(f"{path} is not readable JSON: {error}", "fetch the file anew") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds no JSON object", "fetch the file anew")
    return value


def _locate(path: Path) -> dict[str, Path]:
    """Tensor name to file."""
    if (path / INDEX).exists():
        shards = read_json(path / INDEX).get("weight_map", {})
        missing = sorted({file for file in shards.values() if not (path / file).is_file()})
        if missing:
            raise ModelError(
                f"{path} lacks {len(missing)} of the files in its index, the first is {missing[0]}",
                "fetch the missing files",
            )
        return {name: path / file for name, file in shards.items()}
    found: dict[str, Path] = {}
    for file in sorted(path.glob("*.safetensors")):
        found |= dict.fromkeys(_open(file).keys(), file)
    if not found:
        raise ModelError(f"{path} has no *.safetensors", "give a folder with safetensors weights")
    return found


def _open(file: Path) -> Any:
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(file, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ModelError(
            f"{file} is truncated or damaged: {error}", "fetch the file anew"
        ) from error
