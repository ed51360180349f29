"""Every block, alone on transformers' input and in place."""

import pytest

from parity_tests.harness.points import Point
from parity_tests.harness.recorder import Recorder


@pytest.mark.level("block")
def test_block(point: Point, recorder: Recorder) -> None:
    recorder.point(point)
