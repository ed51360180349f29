"""From token ids to logits."""

import pytest

from parity_tests.harness import hf
from parity_tests.harness.case import Case, batches_of, twin
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
    batches = batches_of(case)
    hf.forget(model)
    before, _, after = (hf.run(model, "f64", batch.inputs).logits for batch in (batches[0], batches[-1], batches[0]))
    hf.forget(model)
    recorder.check(case, "repeated", under_lens(after, before))
