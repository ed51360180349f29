"""Greedy continuations by both sides."""

from __future__ import annotations

from torch import Tensor

from parity_tests.harness import hf, ours
from parity_tests.harness.batches import Batch
from parity_tests.harness.case import Case, reference, twin
from parity_tests.harness.memory import of_model
from parity_tests.harness.shapes import unchecked
from reference_impl.generation import generate
from reference_impl.generation_settings import Settings


def generate_both(
    case: Case, prompt: Batch, n_new: int, *, eos: int | None = None, read: int = 0
) -> tuple[Tensor, Tensor]:
    """transformers' and the reference's continuation (b, n_new) of a prompt; shorter when every row met `eos`.

    read: transformers is given a cache of so many tokens of the prompt.
    """
    model = reference(case)
    ending = Settings() if eos is None else Settings(eos_token_id=(eos,), pad_token_id=eos)

    def mine() -> Tensor:
        with unchecked():
            return generate(model, **ours.cast(model, prompt.inputs), n_new=n_new, settings=ending).tokens

    key = ("greedy", *((name, str(x.tolist())) for name, x in prompt.inputs.items() if name != "memory"), n_new, eos)
    settings = {} if eos is None else {"eos_token_id": eos, "pad_token_id": eos}
    theirs = hf.generate(twin(case), case.precision, prompt, n_new, read=read, **settings)
    return theirs.sequences, of_model(model, key, mine)
