"""From token ids to logits."""

import pytest

from parity_tests.harness import hf
from parity_tests.harness.batches import standard_batches
from parity_tests.harness.case import Case, reference, twin
from parity_tests.harness.compare import under_lens
from parity_tests.harness.points import Point
from parity_tests.harness.recorder import Recorder

pytestmark = pytest.mark.level("model")


def test_model(point: Point, recorder: Recorder) -> None:
    recorder.point(point)


@pytest.mark.precisions("f64")
def test_a_longer_call_leaves_nothing_behind(case: Case, recorder: Recorder) -> None:
    """The same call gives the same before and after one that reaches further."""
    recorder.run(case, "accumulated", "repeated")
    model = twin(case)
    batches = {batch.name: batch.to(case.device) for batch in standard_batches(reference(case).config.vocab_size)}
    hf.forget(model)
    before, _, after = (hf.run(model, "f64", batches[name].ids).logits for name in ("plain", "long", "plain"))
    hf.forget(model)
    recorder.check(case, "repeated", under_lens(after, before))
