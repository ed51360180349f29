"""A case is one model in one setting; a run is what comparing both sides of it gave. Runs are made once a process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import weight_mapping
from fixtures import tiny
from parity_tests.families import FAMILIES
from parity_tests.harness import hf, ours
from parity_tests.harness.batches import Batch, standard_batches
from parity_tests.harness.compare import (
    DTYPES,
    Outcome,
    absent,
    largest_relative,
    select,
    under_lens,
    within_budget,
    worse,
)
from parity_tests.harness.memory import of_model, once
from parity_tests.harness.record import Call, Deviation, Family, Site, Unit, kind_of

TRAINED = "trained:"
"""Prefix of the variant that is a checkpoint on disk: `trained:/models/smollm2.gguf`."""


@dataclass(frozen=True, order=True)
class Case:
    """family-variant-precision-attention on a device; its text form is the beginning of a test id."""

    family: str
    variant: str
    precision: str
    attention: str
    device: str = "cpu"

    def __str__(self) -> str:
        return f"{self.family}-{self.name}-{self.precision}-{self.attention}"

    @property
    def trained(self) -> bool:
        """Whether this is a checkpoint somebody trained, and not a fixture."""
        return self.variant.startswith(TRAINED)

    @property
    def name(self) -> str:
        """The variant, or the trained checkpoint's file or folder without its ending."""
        return Path(self.variant.removeprefix(TRAINED)).stem if self.trained else self.variant

    @property
    def record(self) -> Family:
        return FAMILIES[self.family]

    @property
    def source(self) -> Path:
        """The checkpoint of this case on disk."""
        if self.trained:
            return Path(self.variant.removeprefix(TRAINED))
        return tiny.path_of(self.family, self.variant)


@once
def _reference(case: Case) -> Any:
    model = weight_mapping.load(case.source, dtype=DTYPES[case.precision], device=case.device)
    return model.requires_grad_(False)


def reference(case: Case, precision: str | None = None) -> Any:
    """The reference of a case's checkpoint, loaded through the weight mapping, in the case's precision or another."""
    return _reference(replace(case, attention="", precision=precision or case.precision))


@once
def twin(case: Case) -> nn.Module:
    """transformers' model of a case. Errors: hf.Absent."""
    return hf.build(case.record.hf_class, case.source, case.precision, case.attention, case.device)


def batches_of(case: Case, vocab_size: int) -> list[Batch]:
    """What a case is run on: every shape for a tiny model, one text-like line for a trained one."""
    batches = standard_batches(vocab_size)
    if case.trained:
        batches = [batch for batch in batches if batch.name in ("plain", "padded")]
    return [batch.to(case.device) for batch in batches]


@dataclass
class Traced:
    """One batch through both sides. oracle: the float64 reference on the same weights; `mine` itself under the lens."""

    batch: Batch
    theirs: Mapping[str, Call]
    mine: Mapping[str, Tensor]
    oracle: Mapping[str, Tensor]


@dataclass
class Run:
    """The comparison of one case, site by site; what is asked for is computed then."""

    case: Case
    model: Any
    oracle: Any
    traces: list[Traced]
    units: list[Unit]
    _outcomes: dict[tuple[str, str], Outcome] = field(default_factory=dict)

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
            traces.append(Traced(traced.batch, traced.theirs, mine, mine))
        return Run(self.case, model, model, traces, self.units)

    def judge(self, site: Site, call: Call, batch: Batch, mine: Tensor, oracle: Tensor) -> Outcome:
        """Compare one site of one batch."""
        value = site.read(call)
        if value is None:
            return absent(site.absent)
        theirs, mine, oracle = (select(x, site.axes, batch.keep, batch.keep) for x in (value, mine, oracle))
        return under_lens(theirs, mine) if self.lens else within_budget(theirs, mine, oracle)

    def accumulated(self, unit: Unit, traced: Traced) -> dict[str, Outcome]:
        """Both sides ran freely up to here."""
        call = traced.theirs[unit.name]
        names = [(site, unit.site_name(site)) for site in unit.sites]
        return {n: self.judge(s, call, traced.batch, traced.mine[n], traced.oracle[n]) for s, n in names}

    def isolated(self, unit: Unit, traced: Traced) -> dict[str, Outcome]:
        """The reference's block was given the input that transformers' block got."""
        if unit.feed is None:
            return {}
        call = traced.theirs[unit.name]
        mine = ours.isolated(self.model, unit, call, traced.mine, self.dtype)
        oracle = mine if self.lens else ours.isolated(self.oracle, unit, call, traced.oracle, torch.float64)
        names = [(site, unit.site_name(site)) for site in unit.sites]
        return {n: self.judge(s, call, traced.batch, mine[n], oracle[n]) for s, n in names}

    @cached_property
    def outcomes(self) -> dict[tuple[str, str], Outcome]:
        """(mode, site) -> the worst outcome over all batches."""
        found: dict[tuple[str, str], Outcome] = {}
        for traced in self.traces:
            for unit in self.units:
                modes = {"isolated": self.isolated(unit, traced), "accumulated": self.accumulated(unit, traced)}
                for mode, sites in modes.items():
                    for name, outcome in sites.items():
                        earlier = found.get((mode, name))
                        found[mode, name] = worse(earlier, outcome) if earlier else outcome
        return found

    def first_difference(self) -> Difference | None:
        """The first site, in the order of execution, that differs although its input agrees."""
        for unit in self.units:
            for traced in self.traces:
                alone = self.isolated(unit, traced) or self.accumulated(unit, traced)
                for name, outcome in alone.items():
                    if outcome.verdict == "differs":
                        return Difference(unit, name, traced, outcome, self.input_error(unit, traced))
        for unit in self.units:
            for traced in self.traces:
                for name, outcome in self.accumulated(unit, traced).items():
                    if outcome.verdict == "differs":
                        return Difference(unit, name, traced, outcome, None)
        return None

    def input_error(self, unit: Unit, traced: Traced) -> float | None:
        """How far what transformers' block was given is from what the reference's own block gets when it runs freely."""
        if unit.feed is None:
            return None
        given = unit.feed(traced.theirs[unit.name], traced.mine)[0]
        own = traced.mine[f"{unit.name}:in"]
        keep = traced.batch.keep
        return largest_relative(*(select(x, "b s", keep, keep) for x in (given, own)))


@dataclass(frozen=True)
class Difference:
    """Where a run first differs. input_error: of what the site was given, None where it was not isolated."""

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
    units = case.record.units_of(model.config.n_layers)
    traces = []
    for batch in batches_of(case, model.config.vocab_size):
        calls = hf.trace(theirs, case.precision, batch, units)
        mine = of_model(model, batch.name, partial(ours.trace, model, batch, units))
        truth = of_model(oracle, batch.name, partial(ours.trace, oracle, batch, units))
        traces.append(Traced(batch, calls, mine, truth))
    return Run(case, model, oracle, traces, units)


@once
def compare(case: Case) -> Run:
    """Run both sides of a case. Errors: hf.Absent when the installed transformers does not have it."""
    return confront(case, twin(case))


def explain(run: Run, difference: Difference) -> tuple[Deviation, float] | None:
    """The deviation with which the reference would agree at this site, and how well; None when no known one does.

    Tried in float64 only, where agreement cannot be an accident of rounding.
    """
    if not run.lens:
        return None
    for deviation in run.case.record.deviations:
        error = _agrees_with(run, difference, deviation)
        if error is not None:
            return deviation, error
    return None


def _agrees_with(run: Run, difference: Difference, deviation: Deviation) -> float | None:
    model = deviation.of(run.model)
    unit, traced = difference.unit, difference.traced
    if difference.input_error is not None:
        call = traced.theirs[unit.name]
        values: Mapping[str, Tensor] = ours.isolated(model, unit, call, traced.mine, torch.float64)
    else:
        values = ours.trace(model, traced.batch, run.units)
    outcomes = []
    for site in unit.sites:
        value = values[unit.site_name(site)]
        outcomes.append(run.judge(site, traced.theirs[unit.name], traced.batch, value, value))
    if any(outcome.verdict == "differs" for outcome in outcomes):
        return None
    return max((outcome.error for outcome in outcomes if outcome.verdict == "same"), default=None)
