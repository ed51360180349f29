"""The items of the seeds: each has its place, its heading and its tests; and what is missing turns it red."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from parity_tests.seeds import carried, page, verdict
from parity_tests.seeds.items import ITEMS, SECTIONS
from parity_tests.seeds.record import Section, alternatives, item


def test_ids_are_unique_and_of_rows() -> None:
    ids = [item.id for item in ITEMS]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[A-Z]\d\.[\w-]+", name) for name in ids)


def test_every_row_has_items() -> None:
    """Those of seed-rows: what has to exist."""
    numbers = {"A": 7, "F": 4, "N": 1, "P": 4, "T": 7, "L": 8, "M": 6, "G": 1, "C": 1, "S": 1}
    assert {item.row for item in ITEMS} == {f"{row}{n + 1}" for row, count in numbers.items() for n in range(count)}


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: f"{section.seed}-{section.heading}")
def test_a_block_says_where_the_seed_has_it(section: Section) -> None:
    """In the seed's words."""
    for symbol in section.symbols:
        said = page.documented(symbol)
        assert section.heading in said, f"{symbol} does not say {section.seed}, {section.heading!r}"
        assert section.seed in said, f"{symbol} does not name {section.seed}"


def test_the_seeds_have_one_name_each() -> None:
    """R1 and R2, everywhere."""
    root = Path(page.reference_impl.__file__).parents[1]
    files = [path for part in ("reference_impl", "weight_mapping", "parity_tests") for path in (root / part).rglob("*.py")]
    named = [path for path in files if re.search(r"\b[Ss]eed [12]\b|\bseed_[12]\b", path.read_text())]
    assert [str(path.relative_to(root)) for path in named if path.name != Path(__file__).name] == []


def test_the_page_is_current() -> None:
    assert page.PAGE.read_text() == page.page(), "say make rows ARGS=--freeze"


def test_every_item_is_in_the_frozen_list() -> None:
    assert list(carried.frozen()) == [item.id for item in ITEMS]


def test_alternatives() -> None:
    assert alternatives("a/{b,c}/{d,e}") == ["a/b/d", "a/b/e", "a/c/d", "a/c/e"]


KIND = "blocks.block/llama/gqa/attn"


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One item that two kinds of tests carry."""
    one = item("A6.attention", "as Llama's", "blocks.block/llama/*/attn", "properties.order")
    monkeypatch.setattr(verdict, "ITEMS", (one,))
    monkeypatch.setattr(verdict, "items_of", lambda kind: (one.id,) if one.shown(kind) else ())
    kinds = ["blocks.block/llama/attn", "properties.order"]
    monkeypatch.setattr(verdict, "frozen", lambda: {one.id: {"kinds": kinds, "run": ""}})


RUNS = {
    "all": ([("passed", KIND), ("passed", "properties.order")], True, "✓"),
    "a-failure": ([("passed", KIND), ("failed", "properties.order")], True, "1 fail"),
    "one-is-gone": ([("passed", KIND)], True, "1 kinds of tests are missing: properties.order"),
    "a-part": ([("passed", KIND)], False, "✓ as far as it was run"),
    "another-part": ([("passed", "moe.jitter")], False, "not run"),
    "nothing-is-left": ([], True, "2 kinds of tests are missing: blocks.block/llama/attn"),
    "absent": ([("skipped", KIND), ("skipped", "properties.order")], True, "absent here"),
}


@pytest.mark.usefixtures("listed")
@pytest.mark.parametrize(("ran", "whole", "says"), RUNS.values(), ids=RUNS)
def test_the_verdict(ran: list[verdict.Ran], whole: bool, says: str) -> None:
    (shown,) = verdict.judge(ran, whole)
    assert shown.verdict == says
    assert shown.right == (says[0] == "✓" or says in ("not run", "absent here"))


@pytest.mark.usefixtures("listed")
def test_a_kind_that_is_not_listed_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "frozen", dict)
    (shown,) = verdict.judge([("passed", KIND)], True)
    assert shown.verdict == "not in the frozen list: blocks.block/llama/attn"
