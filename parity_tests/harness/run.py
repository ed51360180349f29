"""A run is what comparing the two sides of a case gave."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from parity_tests.harness import hf, known, ours
from parity_tests.harness.batches import Batch
from parity_tests.harness.case import Case, batches_of, reference, twin
from parity_tests.harness.compare import (
    DTYPES,
    Outcome,
    Sides,
    absent,
    choices,
    in_precision,
    largest_relative,
    last_keys,
    not_covered,
    select,
    worse,
)
from parity_tests.harness.memory import of_model, once
from parity_tests.harness.names import kind_of
from parity_tests.harness.record import Call, Deviation, Site, Unit, departing
from parity_tests.harness.shapes import unchecked

Values = Mapping[str, Tensor]


@dataclass
class Traced:
    """One batch through both sides. oracle: the float64 reference on the same weights; `mine` itself under the lens.

    routes: the experts that transformers chose, by router. Below float64 the reference is made to take the same, since
    rounding alone flips choices, and what follows a flipped choice cannot be compared.
    """

    batch: Batch
    theirs: Mapping[str, Call]
    mine: Values
    oracle: Values
    routes: Mapping[str, Tensor]


Outcomes = Mapping[tuple[str, str], Outcome]
"""By mode and site."""

Side = tuple[Traced, Values, Values]
"""A batch, and what the reference and its float64 form make of it."""


@dataclass
class Run:
    """The comparison of one case, site by site; what is asked for is computed then.

    plain, plain_oracle: the reference, in the case's precision and in float64. departures: what is held against transformers
    is the reference with these, see `known`.
    """

    case: Case
    plain: Any
    plain_oracle: Any
    departures: tuple[Deviation, ...]
    traces: list[Traced]
    units: list[Unit]

    @property
    def model(self) -> Any:
        return departing(self.plain, self.departures)

    @property
    def oracle(self) -> Any:
        return departing(self.plain_oracle, self.departures)

    def holding(self, ours: known.Against) -> Run:
        """The same case held against another reference, for what is asked of it beside its traces."""
        return Run(self.case, ours(), ours("f64"), (), [], self.units)

    def with_another(self, deviation: Deviation) -> Any:
        """The reference as it is held against transformers, but for one more departure."""
        return departing(self.plain, (*self.departures, deviation))

    @property
    def lens(self) -> bool:
        return self.case.precision == "f64"

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.case.precision]

    def against(self, model: Any, oracle: Any = None) -> Run:
        """The same transformers run, against another reference, which is its own oracle under the lens."""
        oracle = model if oracle is None else oracle
        traces = []
        for traced in self.traces:
            mine, truth = (_trace(side, traced.batch, self.units, traced.routes) for side in (model, oracle))
            traces.append(replace(traced, mine=mine, oracle=truth))
        return Run(self.case, model, oracle, (), traces, self.units)

    def real(self, unit: Unit, site: Site, side: Side, *, name: str) -> Sides | None:
        """What the three give of real tokens, the reference under a name; None where transformers gives nothing."""
        traced, mine, oracle = side
        call = traced.theirs.get(unit.name)
        value = None if call is None else site.read(call)
        if value is None:
            return None
        three = (last_keys(x, site.axes, value) for x in (value, mine[name], oracle[name]))
        theirs, ours, truth = (select(x, site.axes, traced.batch.keep) for x in three)
        return theirs, ours, truth

    def judge(self, unit: Unit, site: Site, sides: Sequence[Side]) -> list[Outcome]:
        """Compare one site, batch by batch."""
        chosen = site.choice and not self.lens
        name = f"{unit.name}.biased" if chosen else unit.site_name(site)
        found = [self.real(unit, site, side, name=name) for side in sides]
        given = [three for three in found if three is not None]
        router = self.oracle.get_submodule(unit.name) if chosen else None
        outcomes = iter([choices(*three, router) for three in given] if chosen else in_precision(given, lens=self.lens))
        return [absent(site.absent) if three is None else next(outcomes) for three in found]

    def judged(self, unit: Unit, sides: Sequence[Side]) -> Iterator[tuple[Traced, str, Outcome]]:
        """Every site of a unit and every batch."""
        for site in unit.sites:
            for (traced, *_), outcome in zip(sides, self.judge(unit, site, sides), strict=True):
                yield traced, unit.site_name(site), outcome

    def accumulated(self, unit: Unit, traces: Sequence[Traced]) -> Iterator[tuple[Traced, str, Outcome]]:
        """Both sides ran freely up to here, but for the choice of experts below float64."""
        return self.judged(unit, [(traced, traced.mine, traced.oracle) for traced in traces])

    def isolated(self, unit: Unit, traces: Sequence[Traced]) -> Iterator[tuple[Traced, str, Outcome]]:
        """The reference's block was given the input that transformers' block got. Where that is of another dtype, which shows
        at the site that made it, nothing is said.
        """
        fed = []
        for traced in traces if unit.feed else ():
            note = self.misfed(unit, traced)
            if note is None:
                fed.append(self.alone(unit, traced))
            else:
                yield from ((traced, unit.site_name(site), not_covered(note)) for site in unit.sites)
        yield from self.judged(unit, fed)

    def misfed(self, unit: Unit, traced: Traced) -> str | None:
        """How the dtype of what transformers' block got is another than that of what the reference's gets, in words."""
        assert unit.feed is not None
        if unit.name not in traced.theirs or self.lens:
            return None
        theirs, mine = unit.feed(traced.theirs[unit.name], traced.mine).args[0], traced.mine[f"{unit.name}:in"]
        says = f"it is given {theirs.dtype} in transformers, {mine.dtype} in the reference".replace("torch.", "")
        return says if theirs.dtype != mine.dtype else None

    def alone(self, unit: Unit, traced: Traced) -> Side:
        """What the reference's block makes of the input of its twin."""
        call = traced.theirs.get(unit.name)
        if call is None:
            return traced, {}, {}
        with ours.forced(self.model, traced.routes):
            mine = ours.isolated(self.model, unit, call, traced.mine, self.dtype)
        if self.lens:
            return traced, mine, mine
        with ours.forced(self.oracle, traced.routes):
            return traced, mine, ours.isolated(self.oracle, unit, call, traced.oracle, torch.float64)

    @cached_property
    def outcomes(self) -> dict[tuple[str, str], Outcome]:
        """(mode, site) -> the worst outcome over all batches, with known differences marked as such."""
        with checked_once(self.case):
            found = self.unmarked
            return {**found, **self._excused(found), **self._explained(found)}

    @cached_property
    def unmarked(self) -> dict[tuple[str, str], Outcome]:
        """The same without regard to what is known."""
        return self._outcomes(self.units)

    def _outcomes(self, units: Sequence[Unit]) -> dict[tuple[str, str], Outcome]:
        found: dict[tuple[str, str], Outcome] = {}
        for unit in units:
            for mode, judged in (("isolated", self.isolated), ("accumulated", self.accumulated)):
                for _, name, outcome in judged(unit, self.traces):
                    earlier = found.get((mode, name))
                    found[mode, name] = worse(earlier, outcome) if earlier else outcome
        return found

    def _excused(self, found: Outcomes) -> Outcomes:
        """What differs where a known difference without an explanation lists it."""
        wrong = {place: outcome for place, outcome in found.items() if outcome.verdict == "differs"}
        excuses = {(mode, name): known.excuse(self.case, name, outcome) for (mode, name), outcome in wrong.items()}
        return {place: wrong[place].known(excuse.note) for place, excuse in excuses.items() if excuse is not None}

    @cached_property
    def undeparted(self) -> Run:
        """The same transformers run, against the reference without the departures that are known."""
        return self.against(self.plain, self.plain_oracle)

    def _explained(self, found: Outcomes) -> Outcomes:
        """What agrees with the departures that transformers is known for, and without them would not, at their own sites."""
        names = [unit.site_name(site) for unit in self.units for site in unit.sites]
        explained = {name: known.explained_at(self.case, name) for name in names} if self.departures else {}
        own = {name: difference.note for name, difference in explained.items() if difference is not None}
        if not own:
            return {}
        units = [unit for unit in self.units if any(unit.site_name(site) in own for site in unit.sites)]
        return {
            (mode, name): outcome.known(own[name])
            for (mode, name), outcome in self.undeparted._outcomes(units).items()
            if name in own and outcome.verdict == "differs" and found[mode, name].verdict == "same"
        }

    def differences(self) -> Iterator[Difference]:
        """Every site that differs although its input agrees, in the order of execution; then those that only differ in
        place.
        """
        pools = [[traced] for traced in self.traces] if self.lens else [self.traces]  # a budget is of all, a bar of each
        for unit, traces in product(self.units, pools):
            for traced, name, outcome in (self.isolated if unit.feed else self.accumulated)(unit, traces):
                if outcome.verdict == "differs":
                    yield Difference(unit, name, traced, outcome, self.input_error(unit, traced))
        for unit, traces in product(self.units, pools):
            for traced, name, outcome in self.accumulated(unit, traces):
                if outcome.verdict == "differs":
                    yield Difference(unit, name, traced, outcome, None)

    def first_difference(self) -> Difference | None:
        """The first site, in the order of execution, that differs although its input agrees."""
        return next(self.differences(), None)

    def input_error(self, unit: Unit, traced: Traced) -> float | None:
        """How far what transformers' block was given is from what the reference's own block gets when it runs freely."""
        if unit.feed is None:
            return None
        given = unit.feed(traced.theirs[unit.name], traced.mine).args[0]
        own, keep = traced.mine[f"{unit.name}:in"], traced.batch.keep
        axes = next((f"b {axis}" for axis, real in keep.items() if own.shape[:2] == real.shape), None)
        axes = axes or ("n" if "s" in keep and len(own) == keep["s"].numel() else "b")
        return largest_relative(*(select(x, axes, keep) for x in (given, own)))


@dataclass(frozen=True)
class Difference:
    """Where a run differs. input_error: of what the site was given, None where it was not isolated."""

    unit: Unit
    site: str
    traced: Traced
    outcome: Outcome
    input_error: float | None

    @property
    def kind(self) -> str:
        return kind_of(self.site)


def confront(case: Case, theirs: nn.Module) -> Run:
    """Run both sides of a case, transformers' being `theirs`."""
    plain, plain_oracle, departures = reference(case), reference(case, "f64"), known.departures(case)
    model, oracle = departing(plain, departures), departing(plain_oracle, departures)
    units = case.record.units_of(model.config)
    traces = []
    for batch in batches_of(case):
        calls = hf.trace(theirs, case.precision, batch, units)
        routes = {} if case.precision == "f64" else routes_of(calls, units)
        with checked_once(case):
            mine, truth = (_trace(side, batch, units, routes) for side in (model, oracle))
        traces.append(Traced(batch, calls, mine, truth, routes))
    return Run(case, plain, plain_oracle, departures, traces, units)


def checked_once(case: Case) -> AbstractContextManager[None]:
    """Check the reference's shapes under the lens and the first backend; the others call it with the same ones."""
    first = case.precision == "f64" and case.backend == case.record.backends[0]
    return nullcontext() if first else unchecked()


def routes_of(calls: Mapping[str, Call], units: list[Unit]) -> dict[str, Tensor]:
    """The experts that transformers chose, by the name of the router."""
    routers = [unit for unit in units if unit.routes is not None and unit.name in calls]
    chosen = {unit.name: unit.routes(calls[unit.name]) for unit in routers if unit.routes is not None}
    return {name: choice for name, choice in chosen.items() if choice is not None}


def _trace(model: Any, batch: Batch, units: list[Unit], routes: Mapping[str, Tensor]) -> Values:
    if not routes:
        return of_model(model, batch.name, lambda: ours.trace(model, batch, units))
    with ours.forced(model, routes):
        return ours.trace(model, batch, units)


@once
def compare(case: Case) -> Run:
    """Run both sides of a case. Errors: hf.Absent when the installed transformers does not have it."""
    return confront(case, twin(case))


def explain(run: Run, difference: Difference) -> tuple[Deviation, float] | None:
    """The deviation with which the reference would agree at this site, and how well; None when no known one does.

    Tried in float64 only, where agreement cannot be an accident of rounding; those of this site first.
    """
    if not run.lens:
        return None
    for deviation in sorted(run.case.deviations, key=lambda deviation: deviation.site != difference.kind):
        error = _agrees_with(run, difference, deviation)
        if error is not None:
            return deviation, error
    return None


def _agrees_with(run: Run, difference: Difference, deviation: Deviation) -> float | None:
    model = run.with_another(deviation)
    unit, traced = difference.unit, difference.traced
    if difference.input_error is not None:
        call = traced.theirs[unit.name]
        values: Values = ours.isolated(model, unit, call, traced.mine, torch.float64)
        judged = [unit]
    else:
        judged = [other for other in run.units if kind_of(other.name) == kind_of(unit.name)]  # of every layer
        values = ours.trace(model, traced.batch, run.units)
    outcomes = [(name, outcome) for each in judged for _, name, outcome in run.judged(each, [(traced, values, values)])]
    wrong = [(name, outcome) for name, outcome in outcomes if outcome.verdict == "differs"]
    if any(known.excuse(run.case, name, outcome) is None for name, outcome in wrong):
        return None
    return max((outcome.error for _, outcome in outcomes if outcome.verdict == "same"), default=None)
