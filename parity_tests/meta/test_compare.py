"""The comparison notices what it should."""

import math

import pytest
import torch
from torch import Tensor

from parity_tests.harness.compare import BAR, Outcome, Sides, absent, select, under_lens, within_budget, worse


def test_dtype_comes_first() -> None:
    outcome = under_lens(torch.ones(2), torch.ones(3, dtype=torch.float64))
    assert outcome.verdict == "differs"
    assert "float32" in outcome.note


def test_then_shape() -> None:
    outcome = under_lens(torch.ones(2), torch.ones(3))
    assert outcome.verdict == "differs"
    assert "(2,)" in outcome.note


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("sides", ["theirs", "mine", "both"])
def test_what_is_not_finite_never_passes(bad: float, sides: str) -> None:
    good, wrong = torch.ones(3), torch.tensor([1.0, bad, 1.0])
    theirs, mine = {"theirs": (wrong, good), "mine": (good, wrong), "both": (wrong, wrong)}[sides]
    assert under_lens(theirs, mine).verdict == "differs"
    (outcome,) = within_budget([(theirs, mine, good.double())])
    assert outcome.verdict == "differs"


def test_one_element_counts_in_full() -> None:
    mine = torch.ones(10**6, dtype=torch.float64)
    theirs = mine.clone()
    theirs[123] += 2 * BAR
    outcome = under_lens(theirs, mine)
    assert outcome.verdict == "differs"
    assert outcome.worst is not None
    assert outcome.worst[0] == (123,)
    assert under_lens(mine, mine).bits_equal


def verdicts(*inputs: Sides) -> list[str]:
    return [outcome.verdict for outcome in within_budget(inputs)]


ORACLE = torch.linspace(1, 2, 100, dtype=torch.float64).reshape(20, 5)
ROUNDED = ORACLE.to(torch.bfloat16)


def off_by(shift: float) -> Tensor:
    return (ORACLE + shift).to(torch.bfloat16)


def test_a_budget_is_twice_the_references_own_error() -> None:
    assert verdicts((ROUNDED, ROUNDED, ORACLE)) == ["same"]
    assert verdicts((off_by(0.05), ROUNDED, ORACLE)) == ["differs"]


def test_a_budget_is_of_the_input_where_the_reference_errs_most() -> None:
    lucky = torch.full((4, 2), 0.5, dtype=torch.float64)
    almost = (lucky + 0.01).to(torch.bfloat16)
    assert verdicts((almost, lucky.to(torch.bfloat16), lucky)) == ["differs"]
    assert verdicts((almost, lucky.to(torch.bfloat16), lucky), (off_by(0.02), off_by(0.02), ORACLE)) == ["same", "same"]
    far = (-lucky).to(torch.bfloat16)
    assert verdicts((almost, lucky.to(torch.bfloat16), lucky), (far, far, lucky)) == ["differs", "not covered"]


def test_one_token_is_set_aside_and_no_second() -> None:
    one, two = ROUNDED.clone(), ROUNDED.clone()
    one[3] += 0.5
    two[3:5] += 0.5
    assert verdicts((one, ROUNDED, ORACLE)) == ["same"]
    assert verdicts((two, ROUNDED, ORACLE)) == ["differs"]
    assert verdicts((one, ROUNDED, ORACLE), (one, ROUNDED, ORACLE)).count("differs") == 1
    assert verdicts((one[3:4], ROUNDED[3:4], ORACLE[3:4])) == ["differs"], "there is no other"


def test_booleans_must_be_equal() -> None:
    mine = torch.tensor([True, False])
    assert under_lens(mine, mine).verdict == "same"
    assert under_lens(~mine, mine).error == 1.0


def test_padding_is_left_out_of_every_kind_of_axis() -> None:
    real = torch.tensor([[True, False, True]])
    assert select(torch.zeros(1, 3, 5), "b s d", {"s": real}).shape == (2, 5)
    assert select(torch.zeros(1, 4, 3, 5), "b g t e", {"s": real}).shape == (2, 4, 5)
    assert select(torch.zeros(1, 4, 3, 3), "b h s t", {"s": real}).shape == (2, 4, 3)
    assert select(torch.zeros(3, 7), "n x", {"s": real}).shape == (2, 7)
    assert select(torch.zeros(1, 3, 5), "b m d", {"m": real}).shape == (2, 5)
    assert select(torch.zeros(1, 4, 2, 3), "b h s m", {"s": real[:, :2], "m": real}).shape == (1, 4, 3)
    assert select(torch.zeros(1, 5), "b d", {"s": real}).shape == (1, 5)


def test_a_shared_row_is_compared_with_every_row() -> None:
    real = torch.ones(2, 3, dtype=torch.bool)
    assert select(torch.zeros(1, 3, 5), "b s p", {"s": real}).shape == (6, 5)


def test_the_worse_outcome_is_reported_and_bits_are_equal_only_in_both() -> None:
    good, bad = Outcome(1e-15, 1e-11, True, "same"), Outcome(1.0, 1e-11, False, "differs")
    assert worse(good, bad) is bad
    assert worse(good, Outcome(0.0, 1e-11, False, "same")).bits_equal is False
    assert worse(absent("why"), good).verdict == "same"
