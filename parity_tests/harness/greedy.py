"""Greedy continuations by both sides."""

from __future__ import annotations

from torch import Tensor

from parity_tests.harness import hf
from parity_tests.harness.case import Case, reference, twin
from parity_tests.harness.memory import of_model
from parity_tests.harness.shapes import unchecked
from reference_impl.generation import generate_greedy


def generate_both(
    case: Case, ids: Tensor, n_new: int, *, real: Tensor | None = None, eos: int | None = None
) -> tuple[Tensor, Tensor]:
    """transformers' and the reference's continuation (b, n_new) of a prompt (b, s); shorter when every row met `eos`."""
    model = reference(case)

    def mine() -> Tensor:
        with unchecked():
            return generate_greedy(model, ids, n_new, real=real, eos=() if eos is None else (eos,))

    key = ("greedy", str(ids.tolist()), n_new, None if real is None else str(real.tolist()), eos)
    options = {} if eos is None else {"eos_token_id": eos, "pad_token_id": eos}
    theirs = hf.generate(twin(case), case.precision, ids, n_new, real=real, **options)
    return theirs, of_model(model, key, mine)
