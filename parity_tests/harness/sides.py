"""Either side of a case as a function from inputs to logits, under the lens: for what is asked of a model beside its sites."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from parity_tests.harness import hf, ours
from parity_tests.harness.batches import Batch
from parity_tests.harness.case import Case, batches_of, reference, twin
from parity_tests.harness.points import usual
from parity_tests.harness.shapes import unchecked

Side = Callable[[Mapping[str, Tensor]], Tensor]
"""From inputs to logits."""


def theirs(case: Case, inputs: Mapping[str, Tensor], **options: Any) -> Tensor:
    """transformers' logits."""
    model = twin(case)
    hf.forget(model)
    return hf.run(model, "f64", inputs, **options).logits


def mine(case: Case, inputs: Mapping[str, Tensor]) -> Tensor:
    """The reference's."""
    with torch.no_grad(), unchecked():
        return ours.read(reference(case), inputs)


def both(case: Case) -> list[Side]:
    """Both sides; the reference, which has no backends, once."""
    return [partial(theirs, case), partial(mine, case)] if usual(case) else [partial(theirs, case)]


def batch_of(case: Case, name: str) -> Batch:
    """A batch by its name; without it the test is skipped."""
    found = [batch for batch in batches_of(case) if batch.name == name]
    if not found:
        pytest.skip(f"such a model reads nothing {name}")
    return found[0]
