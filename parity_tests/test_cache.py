"""Caches: a prompt and steps, several tokens at once, one pass. All the same, on both sides and against each other."""

import pytest

from parity_tests.harness.caches import compare_schedule
from parity_tests.harness.case import Case
from parity_tests.harness.recorder import Recorder

pytestmark = [pytest.mark.level("cache"), pytest.mark.rounding_once, pytest.mark.causal]


def compare(case: Case, schedule: str, kind: str, recorder: Recorder) -> None:
    """Judge the logits over a schedule, and say which deviation explains them where they differ."""
    site, static = f"{kind}.{schedule}", kind == "static"
    run = recorder.run(case, "accumulated", site)
    recorder.judge(case, site, lambda ours: compare_schedule(run.holding(ours), schedule, static=static))


@pytest.mark.parametrize("schedule", ["steps", "chunks"])
def test_cache(case: Case, schedule: str, kind: str, recorder: Recorder) -> None:
    compare(case, schedule, kind, recorder)


@pytest.mark.precisions("f64")
@pytest.mark.one_backend
def test_cache_at_an_edge(case: Case, kind: str, edge: str, recorder: Recorder) -> None:
    """Where a window ends or a rotary table changes, as the config says."""
    compare(case, edge, kind, recorder)


@pytest.mark.parametrize("schedule", ["steps", "chunks"])
def test_what_the_cache_holds(case: Case, schedule: str, recorder: Recorder) -> None:
    site = f"dynamic.{schedule}.held"
    run = recorder.run(case, "accumulated", site)
    recorder.judge(case, site, lambda ours: compare_schedule(run.holding(ours), schedule, static=False, held=True))
