"""The tokenizer that a server was asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from keel.args import ServerArgs
from keel.errors import ArgumentError
from keel.tokenizer.from_folder import tokenizer_from_folder
from keel.tokenizer.tokenizer import Tokenizer
from keel.weights.checkpoint import Checkpoint


def load_tokenizer(args: ServerArgs, checkpoint: Checkpoint) -> Tokenizer:
    """The checkpoint's tokenizer, or that of `--tokenizer-path`, with `--chat-template`.

    Raises:
        ModelError: there is no tokenizer, or it is damaged.
        ArgumentError: the file of `--chat-template` cannot be read.
    """
    if args.tokenizer_path is None:
        tokenizer = checkpoint.tokenizer()
    else:
        tokenizer = tokenizer_from_folder(Path(args.tokenizer_path).expanduser())
    if args.chat_template is None:
        return tokenizer
    try:
        template = Path(args.chat_template).expanduser().read_text("utf-8")
    except (OSError, ValueError) as error:
        raise ArgumentError(
            f"--chat-template {args.chat_template}: {error}", "give a readable Jinja file"
        ) from error
    return replace(tokenizer, chat_template=template)
