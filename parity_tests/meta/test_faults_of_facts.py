"""Every fact that computes something has a fault in its twins, or in its formula, that turns it red."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parity_tests.facts import FACTS
from parity_tests.facts.record import judge
from parity_tests.facts.table import numerics
from parity_tests.findings import baseline
from parity_tests.harness.hf import VERSION
from parity_tests.meta.faults_of_facts import DEFINITIONAL, FAULTS

FOUND: dict[str, list[str]] = json.loads(Path(__file__).with_name("faults_of_facts.json").read_text())
"""Fault -> the facts that it turns red."""
BY_ID = {fact.id: fact for fact in FACTS}


def test_every_fact_has_a_fault_or_is_definitional() -> None:
    turned = {fact for facts in FOUND.values() for fact in facts}
    assert turned | DEFINITIONAL == set(BY_ID)
    assert not turned & DEFINITIONAL
    assert set(FOUND) == set(FAULTS)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("fault", FOUND)
def test_a_fault_turns_its_facts_red(fault: str) -> None:
    """All of them, in the release that is pinned; in others, where classes are called otherwise, those that it reaches."""
    numerics.share(1)
    before = {fact: judge(BY_ID[fact]).word for fact in FOUND[fault]}
    here = [fact for fact, word in before.items() if word != "not here"]
    with FAULTS[fault]():
        still = [fact for fact in here if judge(BY_ID[fact]).word == before[fact]]
    if baseline() == VERSION:
        assert not still
    elif here and still == here:
        pytest.skip(f"nothing of transformers {VERSION} is called so")
