"""The lens sees every float32, and only that."""

from fnmatch import fnmatchcase

import pytest
import torch
from torch import nn

from parity_tests.harness import hf
from parity_tests.harness.case import Case, batches_of, twin
from parity_tests.harness.lens import Leaks, Lens


@pytest.mark.parametrize(
    "ask",
    [
        lambda x: x.to(torch.float32),
        lambda x: x.to(dtype=torch.float32),
        lambda x: x.to("cpu", torch.float32),
        lambda x: x.float(),
        lambda x: x.type(torch.float32),
        lambda x: x.type("torch.FloatTensor"),
        lambda x: x.softmax(-1, dtype=torch.float32),
        lambda x: nn.functional.softmax(x, -1, dtype=torch.float32),
        lambda x: x.sum(-1, dtype=torch.float32),
        lambda x: torch.zeros(3, dtype=torch.float32),
        lambda x: torch.arange(3, dtype=torch.float32),
        lambda x: torch.full((2,), 1.5, dtype=torch.float),
        lambda x: x.new_zeros(3, dtype=torch.float32),
        lambda x: torch.tensor([1.0], dtype=torch.float32),
        lambda x: torch.ones_like(x, dtype=torch.float32),
    ],
)
def test_a_request_for_float32_gives_float64(ask) -> None:
    x = torch.ones(2, 3, dtype=torch.float64)
    assert ask(x).dtype == torch.float32
    with Lens():
        assert ask(x).dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64, torch.bool])
def test_other_dtypes_are_left_alone(dtype: torch.dtype) -> None:
    with Lens():
        assert torch.ones(2).to(dtype).dtype == dtype


def test_leaks_are_counted() -> None:
    with Lens(), Leaks() as leaks:
        torch.ones(2)  # of the default dtype: nobody asked for float32. A mask loses nothing by it
        torch.ones(2).div(3)
    assert leaks.made == {"aten.div.Tensor": 1}


LEAKING = {
    "*-rope-dynamic": "the base of dynamic NTK, which must keep its float32 formula",
    "*-rope-longrope": "the second set of frequencies, for the same reason",
}


@pytest.mark.broad
@pytest.mark.precisions("f64")
def test_nothing_of_a_model_escapes(case: Case) -> None:
    """No float32 tensor is made during a forward on any batch, but for exceptions that are named here."""
    try:
        model = twin(case)
    except (hf.Absent, hf.Crashed) as reason:
        pytest.skip(f"not here: {reason}")
    made = []
    for batch in batches_of(case):
        hf.forget(model)
        try:
            with Leaks() as leaks:
                hf.run(model, "f64", batch.inputs)
        except hf.Crashed as reason:
            pytest.skip(f"known: {reason}")
        made.append(sum(leaks.made.values()))
    leaks_by_design = any(fnmatchcase(f"{case.family}-{case.variant}", pattern) for pattern in LEAKING)
    assert any(made) == leaks_by_design, f"float32 tensors made, by batch: {made}"
