"""Shape checking is on in the tests, and says which argument and which axis is wrong."""

import pytest
import torch
from jaxtyping import TypeCheckError

from parity_tests.harness import ours
from parity_tests.harness.case import Case, cache_batches, reference
from parity_tests.harness.record import Backend
from parity_tests.harness.schedules import SCHEDULES, pieces
from reference_impl.norm import RMSNorm


def test_a_wrong_shape_names_the_argument_and_the_axes() -> None:
    model = reference(Case("llama", "gqa", "f64", Backend("")))
    attention = model.layers[0].attn
    x, rope = torch.zeros(2, 5, 48).double(), (torch.zeros(1, 5, 4).double(), torch.zeros(1, 6, 4).double())
    with pytest.raises(TypeCheckError, match=r"(?s)parameter 'rope'.*s=5"):
        attention(x, rope, torch.ones(1, 1, 5, 5, dtype=torch.bool))


def test_a_wrong_dtype_is_refused() -> None:
    with pytest.raises(TypeCheckError, match="parameter 'x'"):
        RMSNorm(4, 1e-6)(torch.zeros(2, 4, dtype=torch.long))


@pytest.mark.causal
@pytest.mark.one_backend
@pytest.mark.shallow
@pytest.mark.precisions("f64")
def test_shapes_hold_over_a_cache(case: Case) -> None:
    model = reference(case)
    for batch in cache_batches(case):
        for sizes in SCHEDULES.values():
            cache = model.new_cache()
            for piece in pieces(batch, sizes):
                ours.read(model, piece, cache)
            assert cache.length == batch.length
