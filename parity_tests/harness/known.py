"""The rules of known differences, all of them: which are to be expected of a case, what they cover, when they have to show.

One that is *explained* by a deviation covers nothing: what comes after it is held against the reference with that deviation,
and has to agree, which it no longer does once the difference is mended. Its own sites are marked where the reference without
the deviation differs. One without an explanation covers the sites that it lists, and of an exception that one alone; it has
to show at each of those that a test reaches, and of kinds of sites at the first that the release shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import torch

import weight_mapping
from parity_tests.harness import hf
from parity_tests.harness.case import Case, reference
from parity_tests.harness.compare import Outcome
from parity_tests.harness.names import kind_of
from parity_tests.harness.points import config_of, raw_config_of
from parity_tests.harness.record import AS_ONE_READS, Deviation, Known, departing
from weight_mapping import open_checkpoint


def _listed(case: Case, raw: Mapping[str, Any]) -> tuple[Known, ...]:
    config = config_of(case)
    return tuple(
        known
        for known in case.record.known
        if known.in_release(hf.VERSION)
        and case.backend.attention in known.attention
        and case.precision in known.precisions
        and known.where(config)
        and known.says(raw)
        and known.names(case.name)
    )


@cache
def active(case: Case) -> tuple[Known, ...]:
    """The differences that are to be expected of a case in the installed release."""
    return _listed(case, raw_config_of(case))


def _deviations(case: Case, listed: tuple[Known, ...], site: str) -> tuple[Deviation, ...]:
    names = [
        known.explained
        for known in listed
        if known.explained not in (None, AS_ONE_READS) and (not known.local or kind_of(site) in known.sites)
    ]
    return tuple(case.record.deviation(name) for name in dict.fromkeys(names) if name is not None)


@cache
def departures(case: Case, site: str = "") -> tuple[Deviation, ...]:
    """The deviations that say what transformers is known to do here instead; of a site, its local ones with them."""
    return _deviations(case, active(case), site)


def expected(case: Case, precision: str | None = None, site: str = "") -> Any:
    """The reference with what is known of this release applied: what everything is held against."""
    return departing(reference(case, precision), departures(case, site))


def expected_from(case: Case, folder: Path) -> Any:
    """The same of a folder that was written from the case's model, and whose config.json may say it in another way; float64."""
    model = weight_mapping.load(folder, dtype=torch.float64)
    return departing(model, _deviations(case, _listed(case, open_checkpoint(folder).config), ""))


class Against(Protocol):
    """Gives the reference to hold something against, in the case's precision or another."""

    def __call__(self, precision: str | None = None) -> Any: ...


def excuse(case: Case, site: str, outcome: Outcome) -> Known | None:
    """The difference without an explanation that lists this site, or its kind, and is of this sort."""
    listed = (known for known in active(case) if known.explained is None and kind_of(site) in known.sites)
    return next((known for known in listed if known.raises == outcome.raised), None)


def explained_at(case: Case, site: str) -> Known | None:
    """The explained difference that lists this site, or its kind, as its own."""
    return next((k for k in active(case) if k.explained is not None and kind_of(site) in k.sites), None)


def must_show(case: Case, site: str) -> Known | None:
    """The difference without an explanation that has to show at this site. Below float64 it may drown in rounding, and counts
    where it has no float64. What is explained has to show by itself: without it, nothing would agree.
    """
    listed = (known for known in active(case) if known.explained is None and kind_of(site) in known.sites)
    return next((known for known in listed if case.precision == "f64" or "f64" not in known.precisions), None)


def mended(case: Case, site: str = "") -> list[Known]:
    """The explained differences of this case, for where the reference without them agrees and the one with them does not: it
    is one of these.
    """
    explained = (known for known in active(case) if known.explained not in (None, AS_ONE_READS))
    return [known for known in explained if not known.local or kind_of(site) in known.sites]
