"""What the doctor reads, and what it makes of losses: tokenizers, rows of tokens, intervals."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from parity_tests.doctor.reading import NextToken, rows_of
from parity_tests.doctor.statistics import WORTH, entropy, gain
from parity_tests.doctor.text import KINDS, OWN, Text, TextError, Words, own_text, text_of, words_of
from parity_tests.tiny_checkpoints import CONFIG, tensors_of, write_folder, write_gguf


def gguf_with(file: Path, **keys: Any) -> Path:
    return write_gguf(
        file, CONFIG, tensors_of(CONFIG), metadata={f"tokenizer.ggml.{key}": value for key, value in keys.items()}
    )


def test_byte_level_tokens_of_a_gguf_file(tmp_path: Path) -> None:
    tokens = ["a", "b", "Ġ", "1", "2", "ab", "Ġab", "12", "Ã", "©", "Ã©"]
    merges = ["a b", "Ġ ab", "1 2", "Ã ©"]
    plain = words_of(gguf_with(tmp_path / "plain.gguf", model="gpt2", pre="gpt-2", tokens=tokens, merges=merges))
    one = words_of(gguf_with(tmp_path / "one.gguf", model="gpt2", pre="smollm", tokens=tokens, merges=merges))
    assert plain is not None
    assert one is not None
    assert plain.encode("ab ab12é") == [5, 6, 7, 10]
    assert one.encode("ab ab12é") == [5, 6, 3, 4, 10]  # each digit by itself


def test_pieces_and_scores_of_a_gguf_file(tmp_path: Path) -> None:
    tokens = ["<s>", "<0xC3>", "<0xA9>", "▁", "h", "e", "y", "he", "ey", "▁he", "▁hey"]
    scores = [0.0, 0.0, 0.0, -9.0, -9.0, -9.0, -9.0, -2.0, -1.0, -3.0, -4.0]
    words = words_of(gguf_with(tmp_path / "m.gguf", model="llama", tokens=tokens, scores=scores, bos_token_id=0))
    assert words is not None
    assert words.encode("hey") == [0, 3, 4, 8]  # ey is joined first, and nothing has h before it
    assert words.encode("he é") == [0, 9, 3, 1, 2]


def test_a_tokenizer_of_a_folder(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, CONFIG, tensors_of(CONFIG))
    assert words_of(folder) is None
    tokenizer = Tokenizer(models.WordLevel({"[CLS]": 0, "[MASK]": 1, "one": 2, "two": 3, "?": 4}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", 0)])
    tokenizer.enable_truncation(2)
    tokenizer.save(str(folder / "tokenizer.json"))
    words = words_of(folder)
    assert words is not None
    assert words.encode("one two three") == [0, 2, 3, 4]  # as a whole, whatever it is cut to elsewhere
    assert words.mask == 1
    (tmp_path / "text").write_text("two one")
    assert text_of(tmp_path / "text", words).passages == [[0, 3, 2]]
    with pytest.raises(TextError, match="cannot be read as text"):
        text_of(tmp_path / "nowhere", words)
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0"}))
    with pytest.raises(TextError, match=r"is no tokenizer .* fetch it again, or give --ids"):
        words_of(folder)


def test_the_doctors_own_text_has_two_passages_of_each_kind() -> None:
    assert sorted(path.stem for path in OWN.glob("*.txt")) == sorted(f"{kind}-{i}" for kind in KINDS for i in (1, 2))
    text = own_text(Words(lambda text: [*text.encode()], mask=None))
    reading = NextToken(rows_of(text, reach=None))
    assert [len(part) for part in (reading.choose, reading.confirm)] == [len(reading.rows) // 2] * 2
    assert reading.n_tokens > 2000


def test_rows_are_of_one_length_and_keep_most_tokens() -> None:
    passages = [list(range(n)) for n in (100, 100, 90, 10, 100, 100)]
    assert rows_of(Text(passages, "x"), reach=None).shape == (5, 90)
    assert rows_of(Text([list(range(1000))], "x"), reach=None).shape == (4, 250)
    assert rows_of(Text([list(range(1000))], "x"), reach=40).shape[1] == 40
    with pytest.raises(TextError, match="the text has 40 tokens"):
        rows_of(Text([list(range(40))], "x"), reach=None)


def test_an_interval_is_as_wide_as_the_number_tried_demands() -> None:
    before = torch.randn(400, generator=torch.Generator().manual_seed(0)) + 3
    after = before - 0.1 + 0.5 * torch.randn(400, generator=torch.Generator().manual_seed(1))
    one, hundred = gain(before, after, 1), gain(before, after, 100)
    assert one.mean == hundred.mean == pytest.approx(float((before - after).mean()), abs=1e-6)
    error = float((before - after).std()) / 20
    assert one.high - one.mean == pytest.approx(1.95996 * error, rel=1e-4)
    assert hundred.high - hundred.mean == pytest.approx(3.48076 * error, rel=1e-4)  # of 0.05 / 200 on either side
    assert gain(before, before - WORTH / 2, 1).sure
    assert not gain(before, before - WORTH / 2, 1).worth
    assert not gain(before, before + 1, 1).sure


def test_lines_that_are_alike_say_no_more_than_one_of_them() -> None:
    drawn = torch.Generator().manual_seed(5)
    before, after = torch.randn(40, generator=drawn) + 0.3, torch.randn(40, generator=drawn)
    once = gain(before, after, 1, torch.arange(40))
    often = gain(before.repeat(10), after.repeat(10), 1, torch.arange(40).repeat(10))
    assert (often.low, often.high) == pytest.approx((once.low, once.high))
    assert gain(before.repeat(10), after.repeat(10), 1).low > once.low + 0.1


def test_chance_alone_is_seldom_sure() -> None:
    """Of 2,000 pairs without any difference, tried as 20 repairs each time: one search in twenty at most is deceived."""
    drawn = torch.Generator().manual_seed(3)
    deceived = sum(
        any(gain(torch.randn(200, generator=drawn), torch.zeros(200), 20).sure for _ in range(20)) for _ in range(100)
    )
    assert deceived <= 10


def test_entropy_is_of_the_tokens_frequencies() -> None:
    assert entropy([1, 2, 3, 4]) == pytest.approx(math.log(4))
    assert entropy([7] * 5) == 0
    assert entropy([1, 1, 1, 2]) == pytest.approx(-0.75 * math.log(0.75) - 0.25 * math.log(0.25))
