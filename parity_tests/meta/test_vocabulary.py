"""A tokenizer larger than the vocabulary is noted above the run, and is no difference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from parity_tests.harness.report import header
from parity_tests.harness.vocabulary import notes
from parity_tests.tiny_checkpoints import CONFIG, tensors_of, write_gguf

OUTSIDE = "lies outside of the vocabulary of 37 tokens, and is given to no model"
FILES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "all inside": (
        {
            "config.json": {"bos_token_id": 0, "eos_token_id": [1, 36]},
            "tokenizer.json": {"model": {"vocab": {"a": 0, "b": 36}}, "added_tokens": [{"id": 36}]},
        },
        [],
    ),
    "ids of config.json": (
        {"config.json": {"bos_token_id": 50256, "eos_token_id": [1, 37], "pad_token_id": None}},
        [f"bos_token_id 50256 of config.json {OUTSIDE}", f"eos_token_id 37 of config.json {OUTSIDE}"],
    ),
    "ids of generation_config.json": (
        {"generation_config.json": {"pad_token_id": -1}},
        [f"pad_token_id -1 of generation_config.json {OUTSIDE}"],
    ),
    "a tokenizer": ({"tokenizer.json": {"model": {"vocab": {"a": 0, "b": 37}}}}, [f"token 37 of tokenizer.json {OUTSIDE}"]),
    "a tokenizer in a list": (
        {"tokenizer.json": {"model": {"vocab": [["a", 0.0]] * 40}}},
        [f"token 39 of tokenizer.json {OUTSIDE}"],
    ),
    "tokens added": (
        {"tokenizer.json": {"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 41}]}, "added_tokens.json": {"x": 42}},
        [f"token 41 of tokenizer.json {OUTSIDE}", f"token 42 of added_tokens.json {OUTSIDE}"],
    ),
    "what is no such file": ({"tokenizer.json": [1, 2], "generation_config.json": "no", "added_tokens.json": {"x": "y"}}, []),
}


@pytest.mark.parametrize("name", FILES)
def test_what_lies_outside_of_a_vocabulary_is_noted(name: str, tmp_path: Path) -> None:
    files, expected = FILES[name]
    for file, content in {"config.json": {}, **files}.items():
        content = {"vocab_size": 37, **content} if file == "config.json" else content
        (tmp_path / file).write_text(json.dumps(content))
    assert notes(tmp_path) == [f"{tmp_path.name}: {note}" for note in expected]
    assert header("cpu", [tmp_path])[2:] == [f"parity: {tmp_path.name}: {note}" for note in expected]


def test_what_cannot_be_read_is_for_others_to_tell(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    assert notes(tmp_path) == notes(tmp_path / "nowhere") == []


def test_a_gguf_files_tokenizer(tmp_path: Path) -> None:
    tokens = {"tokenizer.ggml.tokens": ["x"] * 39, "tokenizer.ggml.eos_token_id": 38, "llama.vocab_size": CONFIG["vocab_size"]}
    file = write_gguf(tmp_path / "large.gguf", CONFIG, tensors_of(CONFIG), metadata=tokens)
    where = "of the file's tokenizer"
    assert notes(file) == [f"large.gguf: eos_token_id 38 {where} {OUTSIDE}", f"large.gguf: token 38 {where} {OUTSIDE}"]
