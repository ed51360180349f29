"""The three uses of a deviation: it is live in the fixture, the suite catches it at its site, and it explains."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from parity_tests.harness import hf, known, ours
from parity_tests.harness.batches import Batch
from parity_tests.harness.caches import agreement, compare_schedule, explain_schedule
from parity_tests.harness.case import Case, batches_of, cache_batches, reference
from parity_tests.harness.compare import BAR, largest_relative, under_lens
from parity_tests.harness.explanation import explain_site
from parity_tests.harness.names import kind_of
from parity_tests.harness.record import TRAINING, Deviation, departing
from parity_tests.harness.run import Run, compare, explain
from parity_tests.harness.schedules import SCHEDULES, read_ours
from parity_tests.harness.shapes import unchecked
from parity_tests.harness.training import my_dropout, their_dropout

LIVE = 1e6 * BAR
"""What a deviation must at least change, relative to the largest logit: a hundred times what float32 rounding does."""


OVER_A_CACHE = {"cache": "steps", "dynamic.chunks": "chunks"}
"""The schedule that shows a deviation, by the site of those that no single pass shows."""


@pytest.fixture(autouse=True)
def _shapes_are_checked_elsewhere() -> Iterator[None]:
    with unchecked():
        yield


def deviated(run: Run, deviation: Deviation) -> Run:
    """The run as it would be if transformers departed in this way, fed as it was in fact fed: at the site that shows it
    first, since what comes before is not changed by it, and nobody looks at what comes after.
    """
    wrong = run.with_another(deviation)
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
        traces.append(replace(traced, theirs=calls))
    return replace(run, traces=traces)


def comparable(case: Case) -> Run:
    """The comparison of a case; without one there is nothing to be shown here, and other tests say why."""
    try:
        return compare(case)
    except (hf.Absent, hf.Crashed) as reason:
        pytest.skip(f"transformers {hf.VERSION} gives nothing here: {reason}")


def must_show(run: Run, deviation: Deviation) -> None:
    """Skip where this release has no such site, or shows there what no deviation explains, or is known for this very one."""
    case = run.case
    site = f"dynamic.{OVER_A_CACHE[deviation.site]}" if deviation.site in OVER_A_CACHE else deviation.site
    here = {outcome.verdict for (_, name), outcome in run.outcomes.items() if kind_of(name) == site}
    unexplained = any(site in k.sites for k in known.active(case) if k.explained is None)
    if deviation in known.departures(case, site) or unexplained or here == {"absent"}:
        pytest.skip(f"transformers {hf.VERSION} does not show {deviation.site} as it should be")


def alike(run: Run, one: Any, other: Any, schedule: str | None) -> bool:
    """Whether two references agree at every site that is compared, or in what they give over a schedule."""
    if schedule is not None:
        batches, sizes = cache_batches(run.case), SCHEDULES[schedule]
        return agreement(batches, [read_ours(one, batch, sizes)[0] for batch in batches], other, sizes).verdict == "same"
    for traced in run.traces:
        here, there = (ours.trace(model, traced.batch, run.units) for model in (one, other))
        if here.keys() != there.keys() or any(moved(there[name], value) > BAR for name, value in here.items()):
            return False
    return True


def leaves_something(run: Run, deviation: Deviation) -> None:
    """Skip a deviation that changes nothing beside what is known of this release already."""
    schedule = OVER_A_CACHE.get(deviation.site)
    departs = known.departures(run.case, f"dynamic.{schedule}" if schedule else "")
    if departs and alike(run, run.model, run.with_another(deviation), schedule):
        pytest.skip(f"what transformers {hf.VERSION} is known for here leaves nothing of it")


def moved(after: Tensor, before: Tensor) -> float:
    """How far a value moved, relative to its largest; without bounds where it has become another shape."""
    return largest_relative(after, before) if after.shape == before.shape else math.inf


def test_live(case: Case, deviation: Deviation) -> None:
    """The fixture's logits move far above the bar; or what its own site shows, where nothing comes after."""
    model, schedule = reference(case), OVER_A_CACHE.get(deviation.site)
    wrong = deviation.of(model)
    units = [
        unit
        for unit in case.record.units_of(model.config)
        if any(kind_of(unit.site_name(site)) == deviation.site for site in unit.sites)
    ]

    def values(side: Any, batch: Batch) -> list[Tensor]:
        if deviation.site == TRAINING:
            return [my_dropout(side, batch)]
        if schedule is not None:
            return [batch.kept(read_ours(side, batch, SCHEDULES[schedule])[0])]
        seen = ours.trace(side, batch, units)
        own = [value for name, value in seen.items() if kind_of(name) == deviation.site]
        with torch.no_grad():
            return [batch.kept(ours.read(side, batch.inputs)), *own]

    largest = 0.0
    for batch in cache_batches(case) if schedule else batches_of(case):
        pairs = zip(values(wrong, batch), values(model, batch), strict=True)
        largest = max(largest, *(moved(after, before) for after, before in pairs))
        if largest > LIVE:
            return
    pytest.fail(f"{deviation.name!r} moves no logit by more than {largest:.1e}: the fixture is blind")


def test_caught(case: Case, deviation: Deviation) -> None:
    """A reference that departs fails against transformers, and first at the site that the deviation names."""
    run = comparable(case)
    must_show(run, deviation)
    leaves_something(run, deviation)
    run = run.against(run.with_another(deviation))
    unexplained = {site for k in known.active(case) if k.explained is None for site in k.sites}
    first = next((d for d in run.differences() if d.kind not in unexplained), None)
    if deviation.site == TRAINING:
        assert first is None, "a pass in evaluation shows it already"
        batch = batches_of(case)[0]
        theirs = their_dropout(case, batch)
        assert under_lens(theirs, my_dropout(reference(case), batch)).verdict == "same"
        assert under_lens(theirs, my_dropout(run.model, batch)).verdict == "differs"
    elif schedule := OVER_A_CACHE.get(deviation.site):
        assert first is None, "a pass without a cache shows it already"
        assert compare_schedule(run, schedule, static=False).verdict == "differs"
    else:
        assert first is not None, "nothing differs"
        assert first.kind == deviation.site


def test_explained(case: Case, deviation: Deviation) -> None:
    """Where transformers departs, the harness says in which way."""
    run = comparable(case)
    must_show(run, deviation)
    leaves_something(run, deviation)
    wrong_model = run.with_another(deviation)
    if schedule := OVER_A_CACHE.get(deviation.site):
        batches, here = cache_batches(case), known.departures(case, f"dynamic.{schedule}")
        wrong_model = departing(reference(case), (*here, deviation))
        try:
            theirs = [read_ours(wrong_model, batch, SCHEDULES[schedule])[0] for batch in batches]
        except RuntimeError as reason:
            if not here:
                raise
            pytest.skip(f"does not go with what transformers {hf.VERSION} is known for here: {reason}")
        found = explain_schedule(case, schedule, theirs)
        assert found is not None, "nothing explains it"
        assert found.name == deviation.name
        return
    if deviation.site == TRAINING:
        batch = batches_of(case)[0]
        theirs = my_dropout(wrong_model, batch)
        found = explain_site(case, "dropout", lambda against: under_lens(theirs, my_dropout(against(), batch)))
        assert found is deviation
        return
    wrong = deviated(run, deviation)
    difference = next((d for d in wrong.differences() if d.kind == deviation.site), None)
    assert difference is not None
    explanation = explain(wrong, difference)
    assert explanation is not None, f"nothing explains the difference at {difference.site}"
    found = explanation[0]
    same = found.name == deviation.name or alike(run, run.with_another(found), wrong_model, None)
    assert same, f"{found.name!r} explains it instead"
