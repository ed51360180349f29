"""Either side of a case as a function from inputs to logits, under the lens: for what is asked of a model beside its sites."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import pytest
import torch
from torch import Tensor

from parity_tests.harness import hf, ours
from parity_tests.harness.batches import Batch
from parity_tests.harness.case import Case, batches_of, reference, twin
from parity_tests.harness.compare import Outcome, under_lens, worse
from parity_tests.harness.shapes import unchecked

Side = Callable[..., Tensor]
"""From inputs by name to logits. Options that follow are transformers' alone."""

Law = Callable[[Side], Outcome]
"""What must hold of a side, whatever the mathematics is."""


def theirs(case: Case, inputs: Mapping[str, Tensor], **options: Any) -> Tensor:
    """transformers' logits."""
    model = twin(case)
    hf.forget(model)
    return hf.run(model, "f64", inputs, **options).logits


def mine(case: Case, inputs: Mapping[str, Tensor], *, model: Any = None, **options: Any) -> Tensor:
    """The reference's, or those of `model`, which departs from it."""
    with torch.no_grad(), unchecked():
        return ours.read(reference(case) if model is None else model, inputs)


class Asked:
    """A side that remembers what it was asked, and what it gave."""

    def __init__(self, side: Side):
        self.side = side
        self.asked: list[tuple[Mapping[str, Tensor], Tensor]] = []

    def __call__(self, inputs: Mapping[str, Tensor], **options: Any) -> Tensor:
        logits = self.side(inputs, **options)
        self.asked.append((inputs, logits))
        return logits

    def alike(self, other: Side) -> Outcome:
        """Whether another side gives the same to all of it, padding left out."""
        batches = ((Batch(name="asked", inputs=inputs), logits) for inputs, logits in self.asked)
        return reduce(worse, (under_lens(b.kept(x), b.kept(other(b.inputs))) for b, x in batches))


def batch_of(case: Case, name: str) -> Batch:
    """A batch by its name; without it the test is skipped."""
    found = [batch for batch in batches_of(case) if batch.name == name]
    if not found:
        pytest.skip(f"such a model reads nothing {name}")
    return found[0]
