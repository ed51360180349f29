"""Why perhaps: the deviation with which the reference would agree where no unit is at hand."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

from parity_tests.harness.case import Case, reference
from parity_tests.harness.compare import Outcome
from parity_tests.harness.known import Against, departures
from parity_tests.harness.points import config_of
from parity_tests.harness.record import Deviation, departing

Compared = Callable[[Against], Outcome]
"""What comes out where transformers is held against a reference."""


def _with(case: Case, deviations: tuple[Deviation, ...], precision: str | None = None) -> Any:
    return departing(reference(case, precision), deviations)


def explain_site(case: Case, site: str, compared: Compared) -> Deviation | None:
    """The deviation with which the reference would agree at a site without a unit; None when no known one does. Tried in
    float64 alone, where agreement cannot be an accident of rounding; those that only such a site shows first.
    """
    if case.precision != "f64":
        return None
    kinds = {kind for kind, *_ in case.record.kinds(config_of(case))}
    here = departures(case, site)
    for deviation in sorted(case.deviations, key=lambda deviation: deviation.site in kinds):
        with suppress(RuntimeError) if here else nullcontext():  # of shapes: not every deviation goes with what is known here
            if compared(partial(_with, case, (*here, deviation))).verdict == "same":
                return deviation
    return None
