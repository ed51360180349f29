"""Caches: a prompt and steps, several tokens at once, one pass. All the same, on both sides and against each other."""

import pytest

from parity_tests.harness.caches import compare_schedule, explain_schedule, their_logits
from parity_tests.harness.case import Case
from parity_tests.harness.recorder import Recorder


@pytest.mark.level("cache")
@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("schedule", ["steps", "chunks"])
def test_cache(case: Case, schedule: str, kind: str, recorder: Recorder) -> None:
    site, static = f"{kind}.{schedule}", kind == "static"
    run = recorder.run(case, "accumulated", site)
    outcome = compare_schedule(run, schedule, static=static)
    found = None
    if outcome.verdict == "differs":
        found = explain_schedule(run, schedule, their_logits(run, schedule, static=static))
    recorder.check(case, site, outcome, f'"{found.name}"' if found else None)
