"""The records say of themselves what the rest relies on."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest

from parity_tests.families import FAMILIES


@pytest.mark.parametrize("family", FAMILIES)
def test_what_explains_a_known_difference_is_live_where_it_appears(family: str) -> None:
    """In every release, for the ranges of most records end before the installed one."""
    record = FAMILIES[family]
    for known in record.known:
        named = [deviation for deviation in record.deviations if deviation.name == known.explained]
        assert len(named) == (known.explained is not None), f"{known.name!r} is explained by {known.explained!r}"
        appears = {v for v in record.variants if any(fnmatchcase(v, pattern) for pattern in known.variants)}
        assert appears, f"{known.name!r} appears in no variant"
        for deviation in named:
            live = {variant for variant in appears if deviation.concerns(variant)}
            assert live == appears, f"{known.explained!r} is not live in {sorted(appears - live)}, where {known.name!r} is"
