"""Training: the same loss, the same gradients through the mapping, the same weights a step later, the same dropout."""

from __future__ import annotations

import pytest
from torch import nn

from parity_tests.harness import hf
from parity_tests.harness.case import Case, batches_of, reference, twin
from parity_tests.harness.compare import BAR, largest_relative, under_lens
from parity_tests.harness.recorder import Recorder
from parity_tests.harness.training import my_dropout, their_dropout, trained

pytestmark = [
    pytest.mark.level("training"),
    pytest.mark.precisions("f64"),
    pytest.mark.one_backend,
    pytest.mark.tiny,
    pytest.mark.shallow,
]


def test_loss(case: Case, recorder: Recorder) -> None:
    recorder.run(case, "accumulated", "loss")
    pair = trained(case)
    recorder.check(case, "loss", under_lens(pair.their_loss, pair.loss))


def test_the_same_parameters_are_trained(case: Case, recorder: Recorder) -> None:
    recorder.run(case, "accumulated", "trainable")
    recorder.check(case, "trainable", trained(case).trainable)


def test_gradients(case: Case, recorder: Recorder) -> None:
    recorder.run(case, "accumulated", "gradients")
    recorder.check(case, "gradients", trained(case).gradients)


def test_a_step_of_an_optimizer(case: Case, recorder: Recorder) -> None:
    recorder.run(case, "accumulated", "step")
    recorder.check(case, "step", trained(case).step)


def test_dropout(case: Case, recorder: Recorder) -> None:
    """Every dropout sits in the same place, and they draw in the same order."""
    recorder.run(case, "accumulated", "dropout")
    if not any(module.p for module in reference(case).modules() if isinstance(module, nn.Dropout)):
        pytest.skip("this variant drops nothing")
    batch = batches_of(case)[0]
    theirs = their_dropout(case, batch)
    calm = hf.run(twin(case), "f64", batch.inputs).logits
    assert largest_relative(theirs, calm) > 1e6 * BAR, "dropout is on, and changes nothing"
    recorder.judge(case, "dropout", lambda ours: under_lens(theirs, my_dropout(ours(), batch)))
