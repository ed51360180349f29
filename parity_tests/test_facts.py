"""What the seeds state about torch and transformers, one test a statement.

A statement that is recorded as failing has to fail, and as recorded.
"""

from __future__ import annotations

import pytest

from parity_tests.facts import FACTS
from parity_tests.facts.record import Fact, judge

pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor")


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact.id)
def test_fact(fact: Fact) -> None:
    verdict = judge(fact)
    if verdict.word == "not here":
        pytest.skip(verdict.note)
    if verdict.wrong:
        pytest.fail(f"{fact.place}: {fact.says}\n  {fact.quote}\n  {verdict.word}: {verdict.note}", pytrace=False)
