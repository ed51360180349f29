"""Repairs are tried on few tokens, chosen on half of the text, confirmed on the other half; then again on what is repaired."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call

from parity_tests.doctor import absences, departures, mapping, numbers, settings
from parity_tests.doctor.patient import Patient
from parity_tests.doctor.reading import Reading
from parity_tests.doctor.repair import Absence, Departure, Repair
from parity_tests.doctor.statistics import WORTH, gain
from parity_tests.doctor.steps import Found, Step, Tried

LARGE = 20_000_000
"""Parameters from which repairs are first tried on few tokens."""
LEVEL = 0.5
"""A trained model loses less than such a part of what knowing how often tokens occur leaves. One that does not may need
more than one repair."""
KEPT, BEGUN, MOST = (20, 8), 3, 3
"""How many repairs go on from the trials; from how many a second is tried where one does not suffice; how many steps."""
NEAR = 0.01
"""Nats a token, which what goes on gains."""
LIVE = 1e-5
"""Nats: a repair that changes no token's loss by more changes nothing here."""

Track = Callable[[Sequence[Repair]], Iterable[Repair]]
"""Hands on what it is given, and shows how far that is."""


def all_repairs(patient: Patient, *, ill: bool = True) -> list[Repair]:
    """Every repair that this model could need. ill: it reads so badly that it may need the reference to depart; one that reads
    well is helped along by some departures when it is damaged otherwise, and they say nothing.
    """
    odd = [repair for oddity in numbers.oddities(patient) for repair in oddity.repairs]
    found = [*odd, *mapping.repairs(patient), *settings.repairs(patient)]
    return [*found, *departures.repairs(patient)] if ill else found


class Search:
    """One search: of a patient, on a text."""

    def __init__(self, reading: Reading, track: Track):
        self.reading, self.track = reading, track

    def run(self, patient: Patient) -> Found:
        """The repairs, step by step, as long as one is worth the name."""
        loss, steps, small, tried = self._loss(patient), [], None, 0
        while len(steps) < MOST:
            last = steps[-1] if steps else None
            found = self._step(last.patient if last else patient, last.after if last else loss, harm=last is None)
            tried = tried or found[1]
            if found[0] is None or not found[0].gain.worth:
                small = found[0]
                break
            steps.append(found[0])
            if isinstance(found[0].repair, Absence):
                break
        if (len(steps) > 1 and any(_doubtful(step) for step in steps)) or (
            not steps and loss >= self.reading.ignorant()
        ):
            steps = min([steps, *self._pairs(patient, loss)], key=lambda way: way[-1].after if way else loss)
        return Found(
            tuple(steps), loss, tried, small if small and (small.gain.sure or small.gain.mean >= WORTH) else None
        )

    def _loss(self, patient: Patient) -> float:
        return self.reading.mean_loss(patient.model())

    def _losses(self, repaired: Patient, rows: Tensor, patient: Patient, model: nn.Module) -> Tensor | None:
        """None where there is no such model: a departure from what this one lacks, a scaling of other widths.

        model: of the patient before it was repaired, which is called with other weights where nothing else is another.
        """
        try:
            if repaired.config is not patient.config or repaired.departures:
                return self.reading.losses(repaired.model(), rows)
            return self.reading.losses(partial(functional_call, model, repaired.changed(patient)), rows)
        except AttributeError:
            if not repaired.departures:
                raise
        except RuntimeError:
            pass
        return None

    def _screened(self, patient: Patient, repairs: Sequence[Repair]) -> tuple[list[Repair], int]:
        """Those that go on, the most promising first, and how many do anything here."""
        n, model = sum(t.numel() for t in patient.parameters.values()), patient.model()
        screens = self.reading.screens(n > LARGE)
        left, live, far = list(repairs), 0, []
        for rows, most in zip(screens, KEPT[-len(screens) :], strict=True):
            gains = list(self._gains(patient, model, left, rows))
            if not live:
                live, far = len(gains), [repair for _, repair in gains if repair.far]
            gains.sort(key=lambda pair: -pair[0])
            left = [repair for gained, repair in gains if gained > NEAR][:most]
        if len(screens) > 1:  # which were short
            row = self.reading.choose[:1]
            others = [repair for repair in far if repair not in left]
            left += [repair for gained, repair in self._gains(patient, model, others, row) if gained > NEAR]
        return left, live

    def _gains(
        self, patient: Patient, model: nn.Module, repairs: Sequence[Repair], rows: Tensor
    ) -> Iterator[tuple[float, Repair]]:
        """What each repair gains on these tokens, of those that run, and that change anything there."""
        before = self.reading.losses(model, rows)
        for repair in self.track(repairs):
            after = self._losses(repair.apply(patient), rows, patient, model)
            if after is not None and bool(after.isfinite().all()) and float((after - before).abs().max()) > LIVE:
                yield float((before - after).mean()), repair

    def _tried(self, patient: Patient, repairs: Sequence[Repair]) -> Iterator[Tried]:
        """On the whole half for choosing; without those whose gain is made with what a token is not to see."""
        for repair in repairs:
            repaired = repair.apply(patient)
            model = repaired.model()
            if not self.reading.cheats(model):
                yield Tried(repair, repaired, self.reading.losses(model, self.reading.choose))

    def _step(self, patient: Patient, loss: float, *, harm: bool = False) -> tuple[Step | None, int]:
        """The best step from here, and how many repairs were tried. harm: where one that may be but a help is best, or none, a
        block that does harm may be better.
        """
        ill = loss >= LEVEL * self.reading.ignorant()
        found, tried = self._best(patient, all_repairs(patient, ill=ill))
        if not (ill and harm and _doubtful(found)):
            return found, tried
        absent, more = self._best(patient, list(absences.repairs(patient)))
        least = self.reading.ignorant() if found is None or not found.gain.worth else found.after
        better = absent is not None and absent.gain.worth and absent.after < min(least, self.reading.ignorant())
        return (absent, tried + more) if better else (found, tried)

    def _best(self, patient: Patient, repairs: Sequence[Repair]) -> tuple[Step | None, int]:
        left, tried = self._screened(patient, repairs)
        found = list(self._tried(patient, sorted(left, key=repairs.index)))
        return (self._confirmed(patient, found, tried) if found else None), tried

    def _confirmed(self, patient: Patient, found: Sequence[Tried], tried: int) -> Step:
        """The best of those that were tried, and those that are as good, on the other half of the text."""
        best = min(found, key=lambda each: float(each.losses.mean()))
        alike = [each for each in found if _as_good(each, best, tried)]
        first = alike[0] if alike else best
        for each in alike:  # one that can be written before one that cannot, else the best
            if _rank(each) < _rank(first):
                first = each
        models = patient.model(), first.patient.model()
        before, after = (self.reading.losses(model, self.reading.confirm) for model in models)
        chosen = self.reading.losses(models[0], self.reading.choose)
        return Step(
            repair=first.repair,
            alike=tuple(each.repair for each in alike if each.repair.name != first.repair.name),
            patient=first.patient,
            gain=gain(before, after, tried, self.reading.groups(self.reading.confirm)),
            tried=tried,
            before=float(torch.cat([chosen, before]).mean()),
            after=float(torch.cat([first.losses, after]).mean()),
        )

    def _pairs(self, patient: Patient, loss: float) -> Iterator[list[Step]]:
        """Two repairs, of which the first need not be the best or worth the name alone."""
        repairs, tried = self._screened(patient, all_repairs(patient))
        for first in sorted(self._tried(patient, repairs[:BEGUN]), key=lambda each: float(each.losses.mean())):
            one = self._confirmed(patient, [first], tried)
            second, _ = self._step(first.patient, loss)
            if second is not None and second.gain.worth and second.after < min(loss, self.reading.ignorant()):
                yield [one, second]


def _doubtful(step: Step | None) -> bool:
    """Whether a step may be but a help, against damage that is not what it says; or none."""
    return step is None or not step.gain.worth or step.repair.local or isinstance(step.repair, Departure)


def _rank(tried: Tried) -> tuple[bool, bool, float]:
    kind = type(tried.repair)
    return kind is not Repair, kind is not Departure, round(float(tried.losses.mean()), 2)


def _as_good(one: Tried, best: Tried, tried: int) -> bool:
    """Whether it cannot be told apart from the best: less than is worth the name, or not surely."""
    if one is best:
        return True
    worse = gain(one.losses, best.losses, tried)
    return worse.mean < WORTH and not worse.sure and math.isfinite(worse.mean)
