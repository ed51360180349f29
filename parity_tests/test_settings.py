"""What each setting of generation does: tokens and processed scores, step by step; of beams, the texts and their scores."""

from __future__ import annotations

import pytest

from parity_tests.harness.case import Case
from parity_tests.harness.decoding import compare_setting
from parity_tests.harness.recorder import Recorder
from parity_tests.harness.settings import SETTINGS

pytestmark = [
    pytest.mark.level("generation"),
    pytest.mark.precisions("f64"),
    pytest.mark.one_backend,
    pytest.mark.causal,
    pytest.mark.tiny,
    pytest.mark.first,
]


@pytest.mark.parametrize("setting", SETTINGS)
def test_setting(case: Case, setting: str, recorder: Recorder) -> None:
    site = f"settings.{setting}"
    recorder.run(case, "accumulated", site)
    with recorder.crashing(case, site):
        outcome = compare_setting(case, setting)
    recorder.check(case, site, outcome)
