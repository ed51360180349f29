"""Greedy generation: the same tokens, token by token, on both sides."""

from typing import Any

import pytest
import torch
from torch import Tensor

from parity_tests.harness import hf
from parity_tests.harness.batches import padded, tokens
from parity_tests.harness.case import Case, reference, twin
from parity_tests.harness.compare import under_lens
from parity_tests.harness.memory import of_model
from parity_tests.harness.recorder import Recorder
from parity_tests.harness.shapes import unchecked
from reference_impl.generation import generate_greedy

pytestmark = [pytest.mark.level("generation"), pytest.mark.precisions("f64", "f32")]
N_NEW = 24


def prompt(case: Case, name: str, shape: tuple[int, int]) -> Tensor:
    return tokens(name, shape, reference(case).config.vocab_size).to(case.device)


def ours(model: Any, ids: Tensor, **options: Any) -> Tensor:
    def generate() -> Tensor:
        with unchecked():
            return generate_greedy(model, ids, N_NEW, **options)

    key = (ids.tolist(), {name: str(value) for name, value in options.items()})
    return of_model(model, str(key), generate)


def test_greedy(case: Case, recorder: Recorder) -> None:
    model = recorder.run(case, "accumulated", "greedy").model
    ids = prompt(case, "greedy", (2, 20))
    theirs = hf.generate(twin(case), case.precision, ids, N_NEW)
    recorder.check(case, "greedy", under_lens(theirs, ours(model, ids)))


def test_left_padded_rows_equal_the_rows_alone(case: Case, recorder: Recorder) -> None:
    model = recorder.run(case, "accumulated", "left-padded").model
    ids = prompt(case, "left-padded", (3, 8))
    pads = [(0, 0), (2, 0), (5, 0)]
    real = padded(ids, pads).to(case.device)
    mine = ours(model, ids, real=real)
    theirs = hf.generate(twin(case), case.precision, ids, N_NEW, real=real)
    rows = [ids[i : i + 1, left:] for i, (left, _) in enumerate(pads)]
    alone = torch.cat([ours(model, row) for row in rows])
    their_alone = torch.cat([hf.generate(twin(case), case.precision, row, N_NEW) for row in rows])
    recorder.check(case, "left-padded", under_lens(theirs, mine))
    recorder.check(case, "left-padded.alone", under_lens(their_alone, alone))
    recorder.check(case, "left-padded.equals-alone", under_lens(theirs, their_alone))


def test_stops_at_eos(case: Case, recorder: Recorder) -> None:
    """An end of sequence inside the batch: that row is filled up, the others go on, and all stop when all have ended."""
    model = recorder.run(case, "accumulated", "eos").model
    ids = prompt(case, "eos", (2, 9))
    free = ours(model, ids)
    eos = int(free[0, 7])  # so that the first row ends after eight tokens at the latest
    theirs = hf.generate(twin(case), case.precision, ids, N_NEW, eos_token_id=eos, pad_token_id=eos)
    mine = ours(model, ids, eos=(eos,))
    assert (mine[0, 8:] == eos).all()
    recorder.check(case, "eos", under_lens(theirs, mine))
