"""The three uses of a deviation: it is live in the fixture, the suite catches it at its site, and it explains."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from parity_tests.harness import hf, ours
from parity_tests.harness.batches import Batch
from parity_tests.harness.caches import compare_schedule, explain_schedule
from parity_tests.harness.case import Case, cache_batches, reference
from parity_tests.harness.compare import BAR, largest_relative
from parity_tests.harness.memory import of_model
from parity_tests.harness.names import kind_of
from parity_tests.harness.record import Deviation
from parity_tests.harness.run import Run, Traced, compare, explain
from parity_tests.harness.schedules import SCHEDULES, read_ours
from parity_tests.harness.shapes import unchecked

LIVE = 1e6 * BAR
"""What a deviation must at least change, relative to the largest logit: a hundred times what float32 rounding does."""


@pytest.fixture(autouse=True)
def _shapes_are_checked_elsewhere() -> Iterator[None]:
    with unchecked():
        yield


def deviated(run: Run, deviation: Deviation) -> Run:
    """The run as it would be if transformers departed in this way, fed as it was in fact fed: at the site that shows it
    first, since what comes before is not changed by it, and nobody looks at what comes after.
    """
    wrong = deviation.of(run.model)
    shown = [unit for unit in run.units if any(kind_of(unit.site_name(s)) == deviation.site for s in unit.sites)]
    traces = []
    for traced in run.traces:
        freely = {} if all(unit.feed for unit in shown) else ours.trace(wrong, traced.batch, run.units)
        calls = dict(traced.theirs)
        for unit in shown:
            if unit.name not in calls:
                continue  # no module of this release
            call = calls[unit.name]
            alone = ours.isolated(wrong, unit, call, traced.mine, run.dtype) if unit.feed else freely
            calls[unit.name] = replace(call, planted={site.name: alone[unit.site_name(site)] for site in unit.sites})
        traces.append(Traced(traced.batch, calls, traced.mine, traced.oracle, {}))
    return Run(run.case, run.model, run.oracle, traces, run.units)


def must_show(run: Run, deviation: Deviation, *, well: bool) -> None:
    """Skip where this release has no such site; well: or where it departs there itself."""
    here = {outcome.verdict for (_, site), outcome in run.outcomes.items() if kind_of(site) == deviation.site}
    if deviation.site == "cache":
        here = {"known"} if any(known.downstream for known in run.case.known) else {"same"}
    if here <= {"absent"} or (well and "known" in here):
        pytest.skip(f"transformers {hf.VERSION} does not show {deviation.site} as it should be")


def test_live(case: Case, deviation: Deviation) -> None:
    """The fixture's logits move far above the bar."""
    model = reference(case)
    wrong = deviation.of(model)
    batches, steps = [traced.batch for traced in compare(case).traces], None
    if deviation.site == "cache":
        batches, steps = cache_batches(case), SCHEDULES["steps"]

    def logits(side: Any, batch: Batch) -> Tensor:
        with torch.no_grad():
            return batch.kept(read_ours(side, batch, steps)[0] if steps else ours.read(side, batch.inputs))

    largest = 0.0
    for batch in batches:
        before = of_model(model, ("live", batch.name), lambda batch=batch: logits(model, batch))
        largest = max(largest, largest_relative(logits(wrong, batch), before))
        if largest > LIVE:
            return
    pytest.fail(f"{deviation.name!r} moves no logit by more than {largest:.1e}: the fixture is blind")


def test_caught(case: Case, deviation: Deviation) -> None:
    """A reference that departs fails against transformers, and first at the site that the deviation names; or agrees with it,
    where that is what a known difference of this release is explained by.
    """
    run = compare(case)
    explains = deviation.name in {known.explained for known in case.known}
    if not explains:
        must_show(run, deviation, well=True)
    run = run.against(deviation.of(run.model))
    beside = [known for known in case.known if not known.downstream]  # what this release shows otherwise, as a cache
    first = next((d for d in run.differences() if not any(known.at(d.kind) for known in beside)), None)
    if deviation.site == "cache":
        assert first is None, "a pass without a cache shows it already"
        assert compare_schedule(run, "steps", static=False).verdict == "differs"
    elif explains:
        assert first is None, "the record says that transformers does this, and there is more"
    else:
        assert first is not None, "nothing differs"
        assert first.kind == deviation.site


def test_explained(case: Case, deviation: Deviation) -> None:
    """Where transformers departs, the harness says in which way."""
    run = compare(case)
    if deviation.site == "cache":
        wrong_model = deviation.of(run.model)
        batches = cache_batches(case)
        theirs = [read_ours(wrong_model, batch, SCHEDULES["steps"])[0] for batch in batches]
        found = explain_schedule(run, "steps", theirs)
        assert found is not None, "nothing explains it"
        assert found.name == deviation.name
        return
    must_show(run, deviation, well=False)
    wrong = deviated(run, deviation)
    difference = wrong.first_difference()
    assert difference is not None
    explanation = explain(wrong, difference)
    assert explanation is not None, f"nothing explains the difference at {difference.site}"
    assert explanation[0].name == deviation.name

