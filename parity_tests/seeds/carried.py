"""Which items a test carries, by what kind of test it is; and the frozen list of all kinds, so that none goes missing."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest

from parity_tests.seeds.items import ITEMS

FROZEN = Path(__file__).with_name("carried.json")
"""Item -> the kinds of tests that carry it, and of one of them an id to run."""


def kind_of_test(test: pytest.Item) -> str:
    """What a test is about, without precision and backend: `blocks.block/llama/gqa/attn.probs`. Of a checkpoint that somebody
    trained, which is here or is not, it is no more than that.
    """
    callspec: Any = getattr(test, "callspec", None)
    parameters: Mapping[str, Any] = callspec.params if callspec else {}
    function = getattr(test, "originalname", None) or test.name
    begin = f"{test.path.stem.removeprefix('test_')}.{function.removeprefix('test_')}"
    point, case, fact = (cast(Any, parameters.get(name)) for name in ("point", "case", "fact"))
    if getattr(getattr(point, "case", case), "trained", False):
        return f"{begin}/trained"
    if hasattr(fact, "check"):
        return f"{begin}/{fact.check.__module__.split('.')[-1]}/{fact.id}"
    if hasattr(point, "case"):
        return f"{begin}/{point.case.family}/{point.case.variant}/{point.kind}"
    if hasattr(case, "variant"):
        rest = test.name.partition("[")[2].removesuffix("]").replace(str(case), "", 1).strip("-")
        return "/".join(filter(None, [begin, case.family, case.variant, rest]))
    return begin + (f"/{callspec.id}" if callspec else "")


@cache
def items_of(kind: str) -> tuple[str, ...]:
    """The items that a kind of test carries."""
    return tuple(item.id for item in ITEMS if item.shown(kind))


@cache
def shortened(kind: str) -> str:
    """A kind without variant and parameters, as the frozen list has it: `blocks.block/llama/attn.probs`."""
    begin, *place = kind.split("/")
    if len(place) >= 3:
        return "/".join([begin, place[0], *place[2:]])
    return "/".join([begin, *place[:1]]) if place and re.fullmatch(r"[a-z]\w*", place[0]) else begin


def frozen() -> dict[str, dict[str, Any]]:
    """The list, as it stands in the repository."""
    return json.loads(FROZEN.read_text()) if FROZEN.is_file() else {}


def _example(ids: Iterable[str]) -> str:
    """Of several tests the one to run first: under the lens, with what shows probabilities, and the shortest."""
    return min(ids, key=lambda one: (bool(re.search(r"-(f32|bf16|f16)\b", one)), "-sdpa" in one, len(one), one))


def freeze(tests: Iterable[pytest.Item]) -> int:
    """Write the list anew; how many items it has."""
    kinds: dict[str, set[str]] = defaultdict(set)
    ids: dict[str, list[str]] = defaultdict(list)
    for test in tests:
        kind = kind_of_test(test)
        for item in items_of(kind):
            kinds[item].add(shortened(kind))
            ids[item].append(test.nodeid)
    found = {
        item.id: {"run": _example(ids[item.id]), "kinds": sorted(kinds[item.id])} for item in ITEMS if ids[item.id]
    }
    FROZEN.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    return len(found)
