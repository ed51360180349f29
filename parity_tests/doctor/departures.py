"""Repairs that are the family's own deviations: what a file needs where the reference, departing so, reads it better."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from parity_tests.doctor.patient import Patient
from parity_tests.doctor.repair import Departure
from parity_tests.harness.record import TRAINING

ELSEWHERE = ("cache", "dynamic.chunks", "mask", "loading", "forward", TRAINING)
"""The sites of those that one pass over a text does not show, or that show a query what it is not to see."""


def repairs(patient: Patient) -> Iterator[Departure]:
    """The deviations of the record that a text could show, each name once."""
    seen = {departure.name for departure in patient.departures}
    for deviation in patient.record.deviations:
        if deviation.site in ELSEWHERE or deviation.name in seen:
            continue
        seen.add(deviation.name)
        so = f"the reference reads this file better when it departs so: {deviation.name}"
        yield Departure(
            name=deviation.name, so=so, apply=lambda p, d=deviation: replace(p, departures=(*p.departures, d))
        )
