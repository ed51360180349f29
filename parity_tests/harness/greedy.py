"""Greedy continuations by both sides."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from parity_tests.harness import hf, ours
from parity_tests.harness.batches import Batch
from parity_tests.harness.case import Case, twin
from parity_tests.harness.known import expected
from parity_tests.harness.memory import of_model
from parity_tests.harness.shapes import unchecked
from reference_impl.generation import generate
from reference_impl.generation_settings import Settings


def their_continuation(case: Case, prompt: Batch, n_new: int, *, eos: int | None = None, read: int = 0) -> Tensor:
    """transformers' continuation (b, n_new) of a prompt; shorter when every row met `eos`.

    read: it is given a cache of so many tokens of the prompt.
    """
    settings = {} if eos is None else {"eos_token_id": eos, "pad_token_id": eos}
    return hf.generate(twin(case), case.precision, prompt, n_new, read=read, **settings).sequences


def my_continuation(model: Any, prompt: Batch, n_new: int, *, eos: int | None = None, read: int = 0) -> Tensor:
    """The same by the reference, or by one that departs from it."""
    ending = Settings() if eos is None else Settings(eos_token_id=(eos,), pad_token_id=eos)

    def make() -> Tensor:
        with unchecked():
            given: dict[str, Any] = ours.cast(model, prompt.inputs)
            return generate(model, **given, n_new=n_new, settings=ending, first=read).tokens

    key = ("greedy", *((name, str(x.tolist())) for name, x in prompt.inputs.items() if name != "memory"), n_new, eos, read)
    return of_model(model, key, make)


def generate_both(case: Case, prompt: Batch, n_new: int) -> tuple[Tensor, Tensor]:
    """transformers' continuation, and what is expected of it."""
    return their_continuation(case, prompt, n_new), my_continuation(expected(case), prompt, n_new)
