"""The records say of themselves what the rest relies on."""

from __future__ import annotations

import pytest

from parity_tests import findings
from parity_tests.families import FAMILIES
from parity_tests.harness.points import config_at
from parity_tests.harness.record import AS_ONE_READS, Family, Known


def appears(record: Family, known: Known) -> set[str]:
    """The variants that have a known difference, in the releases that do."""
    return {
        name
        for name, raw in record.variants.items()
        if known.where(config_at(record.name, name)) and known.says(raw) and known.names(name)
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_a_known_difference_is_explained_or_says_why_not(family: str) -> None:
    for known in FAMILIES[family].known:
        reasons = [known.explained, known.unexplained, known.raises]
        assert sum(map(bool, reasons)) == 1, f"{known.name!r} is explained, raises, or says why it is neither"
        assert known.sites, f"{known.name!r} says nowhere where it shows"
        assert not any("*" in site for site in known.sites), f"{known.name!r} lists its sites by a pattern"


@pytest.mark.parametrize("family", FAMILIES)
def test_what_explains_a_known_difference_is_live_where_it_appears(family: str) -> None:
    """In every release, for the ranges of most records end before the installed one. What hangs on the weights too, as a choice
    among experts does, is live in one variant at least.
    """
    record = FAMILIES[family]
    for known in record.known:
        found = appears(record, known)
        named = [deviation for deviation in record.deviations if deviation.name == known.explained]
        if named and not any(deviation.concerns(variant) for deviation in named for variant in record.variants):
            continue  # of files that no fixture is, and shown by the findings
        assert found, f"{known.name!r} appears in no variant"
        if known.explained not in (None, AS_ONE_READS):
            assert named, f"{known.explained!r} is no deviation of {family}"
            live = {variant for variant in found for deviation in named if deviation.concerns(variant)}
            assert live, f"{known.explained!r} is live in none of {sorted(found)}, where {known.name!r} is"


def test_the_page_of_findings_is_current() -> None:
    assert findings.PAGE.read_text() == findings.page(), "say make known ARGS=--page"


def test_findings_of_one_name_are_one() -> None:
    found = findings.collect()
    assert len({finding.name for finding in found}) == len(found)
    assert all(finding.smallest and finding.ranges for finding in found)
