"""Every whole layer, alone and in place."""

import pytest

from parity_tests.harness.points import Point
from parity_tests.harness.recorder import Recorder


@pytest.mark.level("layer")
def test_layer(point: Point, recorder: Recorder) -> None:
    recorder.point(point)
