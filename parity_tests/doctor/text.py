"""Text and its tokens: by the checkpoint's own tokenizer, or as ids that were given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers

from parity_tests import fixtures
from weight_mapping import open_checkpoint
from weight_mapping.container import Checkpoint

TOKENIZER = "tokenizer.json"
OWN = Path(fixtures.__file__).parent / "text"
KINDS = ("prose", "code", "list", "french")
MASKS = ("[MASK]", "<mask>")
ONE_DIGIT = (
    "smollm",
    "qwen2",
    "deepseek-r1-qwen",
    "starcoder",
    "refact",
    "command-r",
    "codeshell",
    "exaone",
    "minerva-7b",
)
"""GGUF's names of ways to cut text before it is encoded, of those that take each digit by itself."""


class TextError(ValueError):
    """There is no text to read, in one sentence."""


@dataclass(frozen=True)
class Words:
    """A tokenizer: text to ids, with what its model expects around it. mask: the id of the token that hides others."""

    encode: Callable[[str], list[int]]
    mask: int | None


@dataclass(frozen=True)
class Text:
    """Passages as token ids. source: whose text it is, in words."""

    passages: list[list[int]]
    source: str
    mask: int | None = None


def words_of(path: Path) -> Words | None:
    """The tokenizer of the checkpoint at `path`; None where it has none. Errors: TextError for one that cannot be read."""
    checkpoint = open_checkpoint(path)
    if checkpoint.layout == "gguf":
        return _of_gguf(checkpoint)
    file = checkpoint.path / TOKENIZER
    return _of_json(file) if file.is_file() else None


def _of_json(file: Path) -> Words:
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:
        if type(error) is not Exception:  # tokenizers raises no other
            raise
        raise TextError(f"{file}: is no tokenizer ({error}); fetch it again, or give --ids") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return Words(lambda text: tokenizer.encode(text).ids, next(filter(None, map(tokenizer.token_to_id, MASKS)), None))


def _of_gguf(checkpoint: Checkpoint) -> Words | None:
    """Of the keys `tokenizer.ggml.*`: byte-level BPE, or the pieces and scores of SentencePiece."""
    said, prefix = checkpoint.config, "tokenizer.ggml."
    own: Mapping[str, Any] = {key.removeprefix(prefix): said[key] for key in said if key.startswith(prefix)}
    tokens, kind = own.get("tokens"), own.get("model")
    if not isinstance(tokens, list):
        return None
    ids = {token: i for i, token in enumerate(tokens) if isinstance(token, str)}
    if kind == "gpt2" and isinstance(own.get("merges"), list):
        encode = _byte_level(ids, own["merges"], own.get("pre"))
    elif kind == "llama" and isinstance(own.get("scores"), list):
        encode = _pieces(ids, own["scores"])
    else:
        return None
    first = (
        [own["bos_token_id"]]
        if own.get("add_bos_token", kind == "llama") and type(own.get("bos_token_id")) is int
        else []
    )
    return Words(lambda text: [*first, *encode(text)], None)


def _byte_level(ids: Mapping[str, int], merges: Sequence[str], pre: object) -> Callable[[str], list[int]]:
    pairs = [(merge[: merge.index(" ", 1)], merge[merge.index(" ", 1) + 1 :]) for merge in merges if " " in merge[1:]]
    known = [pair for pair in pairs if pair[0] in ids and pair[1] in ids and "".join(pair) in ids]
    tokenizer = Tokenizer(models.BPE(vocab=dict(ids), merges=known))
    bytes_, digits = pre_tokenizers.ByteLevel(add_prefix_space=False), pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, bytes_]) if pre in ONE_DIGIT else bytes_
    return lambda text: tokenizer.encode(text).ids


def _pieces(ids: Mapping[str, int], scores: Sequence[float]) -> Callable[[str], list[int]]:
    """SentencePiece's BPE: of neighbours that make a piece, those of the highest score are joined first; the rest is bytes."""

    def word(text: str) -> list[int]:
        parts = list(text)
        while True:
            joined = [(scores[ids[a + b]], -i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in ids]
            if not joined:
                break
            i = -max(joined)[1]
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        return [i for part in parts for i in spelled(part)]

    def spelled(part: str) -> list[int]:
        if part in ids:
            return [ids[part]]
        return [ids[name] for byte in part.encode() if (name := f"<0x{byte:02X}>") in ids]

    def encode(text: str) -> list[int]:
        # no piece has a space inside, so that each word with the space before it is joined by itself
        marked = ("▁" + text.replace(" ", "▁")).replace("▁", "\0▁").split("\0")
        return [i for part in marked for i in word(part)]

    return encode


def own_text(words: Words) -> Text:
    """The passages that lie beside the fixtures: first one of each kind, then another of each."""
    passages = [words.encode((OWN / f"{kind}-{i}.txt").read_text("utf-8")) for i in (1, 2) for kind in KINDS]
    return Text(passages, f"{len(passages)} passages of the doctor's own: prose, code, lists, French", words.mask)


def text_of(file: Path, words: Words) -> Text:
    """What stands in a file of text. Errors: TextError."""
    try:
        read = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TextError(f"{file}: cannot be read as text ({error})") from error
    return Text([words.encode(read)], str(file), words.mask)


def ids_of(file: Path, mask: int | None) -> Text:
    """Token ids, a passage a line, between spaces or commas. Errors: TextError."""
    try:
        lines = [line.replace(",", " ").split() for line in file.read_text("utf-8").splitlines()]
        return Text([[int(number) for number in line] for line in lines if line], str(file), mask)
    except (OSError, ValueError) as error:
        raise TextError(f"{file}: holds no token ids, a passage a line ({error})") from error
