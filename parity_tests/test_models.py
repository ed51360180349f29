"""From token ids to logits."""

import pytest

from parity_tests.harness.points import Point
from parity_tests.harness.recorder import Recorder


@pytest.mark.level("model")
def test_model(point: Point, recorder: Recorder) -> None:
    recorder.point(point)
