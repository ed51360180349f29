"""Learned positions: a table has an end, and says so. Everything else about them is compared with transformers."""

from __future__ import annotations

import pytest
import torch

from parity_tests.families import FAMILIES
from parity_tests.harness import ours
from parity_tests.harness.batches import Batch
from parity_tests.harness.case import Case, reads, reference
from parity_tests.harness.points import config_of
from parity_tests.harness.record import Backend
from parity_tests.harness.shapes import unchecked
from reference_impl.embedding import LearnedPositions

CASES = [Case(family, variant, "f64", Backend("")) for family, record in FAMILIES.items() for variant in record.variants]
WITH_TABLE = [case for case in CASES if case.record.reads(config_of(case)).reach is not None]


def table_of(case: Case) -> LearnedPositions:
    found = [module for module in reference(case).modules() if isinstance(module, LearnedPositions)]
    if not found:
        pytest.skip("its table is not learned")
    return found[-1]


def text(case: Case, length: int) -> Batch:
    """One row of so many tokens, and whatever the model reads beside them."""
    return reads(case).batch("past the table", (1, length))


@pytest.mark.parametrize("model_case", WITH_TABLE, ids=str)
def test_a_position_past_the_table_is_a_clear_error(model_case: Case) -> None:
    case, model, last = model_case, reference(model_case), table_of(model_case).max_positions - 1
    with torch.no_grad(), unchecked():
        ours.read(model, text(case, last + 1).inputs)
        with pytest.raises(ValueError, match=f"position {last + 1} has no embedding: the table holds positions 0 to {last}"):
            ours.read(model, text(case, last + 2).inputs)


@pytest.mark.parametrize("model_case", [c for c in WITH_TABLE if c.record.reads(config_of(c)).causal], ids=str)
def test_positions_go_on_from_the_cache(model_case: Case) -> None:
    """So that the last of the table is reached in pieces as well, and not passed."""
    case, model, n = model_case, reference(model_case), table_of(model_case).max_positions
    cache, batch = ours.new_cache(model), text(case, n + 1)
    with torch.no_grad(), unchecked():
        for start, end in ((0, n - 2), (n - 2, n)):
            ours.read(model, piece(batch, start, end), cache)
        with pytest.raises(ValueError, match=f"position {n} has no embedding"):
            ours.read(model, piece(batch, n, n + 1), cache)


def piece(batch: Batch, start: int, end: int) -> dict[str, torch.Tensor]:
    return {name: x[:, start:end] if name in ("ids", "types") else x for name, x in batch.inputs.items()}
