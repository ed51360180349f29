"""A run is what comparing the two sides of a case gave."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from parity_tests.harness import hf, ours
from parity_tests.harness.batches import Batch
from parity_tests.harness.case import Case, batches_of, reference, twin
from parity_tests.harness.compare import (
    DTYPES,
    Outcome,
    absent,
    choices,
    largest_relative,
    last_keys,
    select,
    under_lens,
    within_budget,
    worse,
)
from parity_tests.harness.memory import of_model, once
from parity_tests.harness.names import kind_of
from parity_tests.harness.record import Call, Deviation, Known, Site, Unit
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


@dataclass
class Run:
    """The comparison of one case, site by site; what is asked for is computed then."""

    case: Case
    model: Any
    oracle: Any
    traces: list[Traced]
    units: list[Unit]

    @property
    def lens(self) -> bool:
        return self.case.precision == "f64"

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.case.precision]

    def against(self, model: Any) -> Run:
        """The same transformers run, against another reference. Only under the lens, where that is its own oracle."""
        traces = []
        for traced in self.traces:
            mine = ours.trace(model, traced.batch, self.units)
            traces.append(Traced(traced.batch, traced.theirs, mine, mine, {}))
        return Run(self.case, model, model, traces, self.units)

    def judge(self, unit: Unit, site: Site, traced: Traced, mine: Values, oracle: Values) -> Outcome:
        """Compare one site of one batch."""
        name, batch = unit.site_name(site), traced.batch
        call = traced.theirs.get(unit.name)
        value = None if call is None else site.read(call)
        if value is None:
            return absent(site.absent)

        def real(x: Tensor) -> Tensor:
            return select(last_keys(x, site.axes, value), site.axes, batch.keep)

        if site.choice and not self.lens:
            biased = f"{unit.name}.biased"
            router = self.oracle.get_submodule(unit.name)
            return choices(real(value), real(mine[biased]), real(oracle[biased]), router)
        if self.lens:
            return under_lens(real(value), real(mine[name]))
        return within_budget(real(value), real(mine[name]), real(oracle[name]))

    def accumulated(self, unit: Unit, traced: Traced) -> dict[str, Outcome]:
        """Both sides ran freely up to here, but for the choice of experts below float64."""
        mine, oracle = traced.mine, traced.oracle
        return {unit.site_name(site): self.judge(unit, site, traced, mine, oracle) for site in unit.sites}

    def isolated(self, unit: Unit, traced: Traced) -> dict[str, Outcome]:
        """The reference's block was given the input that transformers' block got."""
        if unit.feed is None:
            return {}
        call = traced.theirs.get(unit.name)
        if call is None:
            return {unit.site_name(site): absent(site.absent) for site in unit.sites}
        with ours.forced(self.model, traced.routes):
            mine = ours.isolated(self.model, unit, call, traced.mine, self.dtype)
        oracle = mine
        if not self.lens:
            with ours.forced(self.oracle, traced.routes):
                oracle = ours.isolated(self.oracle, unit, call, traced.oracle, torch.float64)
        return {unit.site_name(site): self.judge(unit, site, traced, mine, oracle) for site in unit.sites}

    @cached_property
    def outcomes(self) -> dict[tuple[str, str], Outcome]:
        """(mode, site) -> the worst outcome over all batches, with known differences marked as such."""
        with checked_once(self.case):
            return self._outcomes()

    def _outcomes(self) -> dict[tuple[str, str], Outcome]:
        found: dict[tuple[str, str], Outcome] = {}
        for traced in self.traces:
            for unit in self.units:
                modes = {"isolated": self.isolated(unit, traced), "accumulated": self.accumulated(unit, traced)}
                for mode, sites in modes.items():
                    for name, outcome in sites.items():
                        earlier = found.get((mode, name))
                        found[mode, name] = worse(earlier, outcome) if earlier else outcome
        for known in self.case.known:
            self._mark(known, found)
        return found

    def _mark(self, known: Known, found: dict[tuple[str, str], Outcome]) -> None:
        """What differs is known: at these sites; in the blocks that hold them; in place, from the first of them on."""
        order = [(unit.name, unit.site_name(site)) for unit in self.units for site in unit.sites]
        units = {name: unit for unit, name in order}
        shown = [name for _, name in order if known.at(kind_of(name)) and _differs(found, name)]
        if not shown:
            return
        names = [name for _, name in order]
        after = set(names[names.index(shown[0]) :])
        for (mode, name), outcome in found.items():
            if known.downstream:
                holds = any(f"{units[site]}.".startswith(f"{units[name]}.".lstrip(".")) for site in shown)
                covered = name in after if mode == "accumulated" else holds
            else:
                covered = name in shown
            if outcome.verdict == "differs" and covered:
                found[mode, name] = outcome.known(known.note)

    def differences(self) -> Iterator[Difference]:
        """Every site that differs although its input agrees, in the order of execution; then those that only differ in
        place.
        """
        for unit in self.units:
            for traced in self.traces:
                alone = self.isolated(unit, traced) or self.accumulated(unit, traced)
                for name, outcome in alone.items():
                    if outcome.verdict == "differs":
                        yield Difference(unit, name, traced, outcome, self.input_error(unit, traced))
        for unit in self.units:
            for traced in self.traces:
                for name, outcome in self.accumulated(unit, traced).items():
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


def _differs(found: Mapping[tuple[str, str], Outcome], name: str) -> bool:
    outcomes = (found.get((mode, name)) for mode in ("isolated", "accumulated"))
    return any(outcome is not None and outcome.verdict in ("differs", "known") for outcome in outcomes)


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
    model, oracle = reference(case), reference(case, "f64")
    units = case.record.units_of(model.config)
    traces = []
    for batch in batches_of(case):
        calls = hf.trace(theirs, case.precision, batch, units)
        routes = {} if case.precision == "f64" else routes_of(calls, units)
        with checked_once(case):
            mine, truth = (_trace(side, batch, units, routes) for side in (model, oracle))
        traces.append(Traced(batch, calls, mine, truth, routes))
    return Run(case, model, oracle, traces, units)


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
    model = deviation.of(run.model)
    unit, traced = difference.unit, difference.traced
    if difference.input_error is not None:
        call = traced.theirs[unit.name]
        values: Values = ours.isolated(model, unit, call, traced.mine, torch.float64)
        judged = [unit]
    else:
        judged = [other for other in run.units if kind_of(other.name) == kind_of(unit.name)]  # of every layer
        values = ours.trace(model, traced.batch, run.units)
    outcomes = [run.judge(each, site, traced, values, values) for each in judged for site in each.sites]
    if any(outcome.verdict == "differs" for outcome in outcomes):
        return None
    return max((outcome.error for outcome in outcomes if outcome.verdict == "same"), default=None)
