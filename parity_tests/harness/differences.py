"""The differences that are upstream's own and known, as the records list them."""

from __future__ import annotations

from collections import defaultdict

from parity_tests.families import FAMILIES
from parity_tests.harness import hf
from parity_tests.harness.record import Known


def releases(known: Known) -> str:
    """The releases that have a difference, in words."""
    if known.since == "0":
        return "every release" if known.until is None else f"before {known.until}"
    return f"since {known.since}" if known.until is None else f"{known.since} to before {known.until}"


def instead(known: Known) -> str:
    """What transformers does instead, in words, or why no deviation says it."""
    if known.explained is not None:
        return f"explained by {known.explained!r}"
    return f"raises {known.raises}" if known.raises is not None else f"unexplained: {known.unexplained}"


def show() -> None:
    """Print them, those of the installed release first: what, in which families and releases, at which sites, where to read of
    it, and what transformers does instead.
    """
    families: dict[Known, list[str]] = defaultdict(list)
    for family in FAMILIES.values():
        for known in family.known:
            families[known].append(family.name)
    here = [known for known in families if known.in_release(hf.VERSION)]
    others = [known for known in families if known not in here]
    for title, chosen in ((f"In transformers {hf.VERSION}", here), ("In other releases", others)):
        unexplained = sum(known.explained is None and known.raises is None for known in chosen)
        print(f"{title}: {len(chosen)} known differences, {unexplained} of them unexplained")
        for known in chosen:
            print(f"  {known.name}\n      {', '.join(families[known])}; {releases(known)}; {known.link}")
            print(f"      at {', '.join(known.sites)}; {instead(known)}")
