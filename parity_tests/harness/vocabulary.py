"""Tokens that a checkpoint's files speak of and its model does not have: a note, for no token of theirs is given to a model.

Every comparison takes its tokens from the model's own vocabulary, and its settings of generation from nowhere else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

CONFIGS = ("config.json", "generation_config.json")
TOKENIZERS = ("tokenizer.json", "vocab.json", "added_tokens.json")


def notes(path: Path) -> list[str]:
    """What lies outside of a checkpoint's vocabulary, in words; nothing of what cannot be read, which others tell of."""
    said = list(_of_folder(path) if path.is_dir() else _of_gguf(path) if path.suffix == ".gguf" else ())
    return [f"{path.name}: {note}, and is given to no model" for note in dict.fromkeys(said)]


def _read(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_text()) if path.is_file() else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _of_folder(folder: Path) -> Iterator[str]:
    size = _read(folder / "config.json").get("vocab_size")
    if not isinstance(size, int):
        return
    for name in CONFIGS:
        yield from _special(_read(folder / name), size, name)
    for name in TOKENIZERS:
        yield from _beyond(max(_ids(_read(folder / name)), default=-1), size, name)


def _of_gguf(file: Path) -> Iterator[str]:
    from weight_mapping import MappingError, open_checkpoint

    try:
        checkpoint = open_checkpoint(file)
        size, metadata = checkpoint.shape("token_embd.weight")[0], checkpoint.config
    except (MappingError, KeyError):
        return
    said = {key.removeprefix("tokenizer.ggml."): value for key, value in metadata.items() if key.startswith("tokenizer.ggml.")}
    yield from _special(said, size, "the file's tokenizer")
    tokens = said.get("tokens")
    yield from _beyond(len(tokens) - 1 if isinstance(tokens, list) else -1, size, "the file's tokenizer")


def _special(config: Mapping[str, Any], size: int, where: str) -> Iterator[str]:
    for key, value in config.items():
        for token in value if isinstance(value, list) else [value]:
            if key.endswith("_token_id") and isinstance(token, int) and not 0 <= token < size:
                yield f"{key} {token} of {where} lies outside of the vocabulary of {size} tokens"


def _beyond(last: int, size: int, where: str) -> Iterator[str]:
    if last >= size:
        yield f"token {last} of {where} lies outside of the vocabulary of {size} tokens"


def _ids(tokenizer: Mapping[str, Any]) -> Iterator[int]:
    """The numbers of a tokenizer's tokens, in each of the ways that its files have."""
    model = tokenizer.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else tokenizer
    if isinstance(vocab, list):
        yield len(vocab) - 1
    if isinstance(vocab, dict):
        yield from (value for value in vocab.values() if type(value) is int)
    added = tokenizer.get("added_tokens")
    for one in added if isinstance(added, list) else ():
        if isinstance(one, dict) and type(one.get("id")) is int:
            yield one["id"]
