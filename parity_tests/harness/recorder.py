"""What a test does with an outcome: put it on record, and fail with a message that a person can act on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NoReturn

import pytest

from parity_tests.harness import hf
from parity_tests.harness.case import Case
from parity_tests.harness.compare import Outcome, absent, refused
from parity_tests.harness.failure import failure, plain_failure
from parity_tests.harness.names import kind_of
from parity_tests.harness.points import Point
from parity_tests.harness.record import Known
from parity_tests.harness.report import Result
from parity_tests.harness.run import Run, compare, explain

Found = tuple[str, str]
"""A mode and a site."""


class Recorder:
    """Belongs to one test."""

    def __init__(self, request: pytest.FixtureRequest, results: list[Result]):
        self.node, self.results = request.node, results
        marker = self.node.get_closest_marker("level")
        self.level = marker.args[0] if marker else ""

    def again(self, case: Case) -> str:
        """The test's id, and the options without which it would not be collected."""
        options = [f"--device {case.device}"] if case.device != "cpu" else []
        options += [f"--checkpoint='{case.source}'"] if case.trained else []
        return " ".join([f'"{self.node.nodeid}"', *options])

    def keep(self, case: Case, mode: str, site: str, outcome: Outcome) -> Outcome:
        """Put an outcome on record."""
        self.results.append(Result.of(case, self.level, mode, site, outcome))
        return outcome

    def run(self, case: Case, mode: str, site: str) -> Run:
        """The comparison of a case; where the installed transformers lacks it, that is recorded and the test skipped."""
        try:
            return compare(case)
        except hf.Absent as reason:
            self.keep(case, mode, site, absent(str(reason)))
            pytest.skip(f"absent: {reason}")
        except hf.Crashed as reason:
            self.check(case, site, refused(str(reason)))
            pytest.skip(f"known: {reason}")

    @contextmanager
    def crashing(self, case: Case, site: str) -> Iterator[None]:
        """Where transformers may raise inside a test: that is judged at `site`, and where it is known the test ends."""
        try:
            yield
        except hf.Crashed as reason:
            self.check(case, site, refused(str(reason)))
            pytest.skip(f"known: {reason}")

    def point(self, point: Point) -> None:
        """Judge one kind of site over all layers and batches."""
        case = point.case
        run = self.run(case, point.mode, point.kind)
        found = {
            (mode, site): self.keep(case, mode, site, outcome)
            for (mode, site), outcome in run.outcomes.items()
            if point.mode in (mode, "both") and kind_of(site) == point.kind
        }
        assert found, f"no site {point.kind} in {case}: the record and the model disagree"
        if any(outcome.verdict == "differs" for outcome in found.values()):
            self.differs(run, point, found)
        for known in case.known:
            shown = [kind for kind in known.sites if self.shows(run, kind)]
            if known.at(point.kind) and shown[:1] == [point.kind]:
                self.still(known, run, point.kind)
        notes = {outcome.note for outcome in found.values() if outcome.verdict not in ("same", "known")}
        if all(outcome.verdict == "absent" for outcome in found.values()):
            pytest.skip(f"absent: {notes.pop()}")

    def shows(self, run: Run, kind: str) -> bool:
        """Whether this release shows a kind of site at all."""
        return any(kind_of(site) == kind and outcome.verdict != "absent" for (_, site), outcome in run.outcomes.items())

    def still(self, known: Known, run: Run, kind: str) -> None:
        """A known difference must show at this kind of site, alone or in place, and be what its record says it is."""
        outcomes = run.outcomes.items()
        shown = [site for (_, site), outcome in outcomes if outcome.verdict == "known" and kind_of(site) == kind]
        if not shown and known.must_show(run.case.precision):
            pytest.fail(
                f"{run.case.setting}\n  a known difference no longer appears: {known.note}\n"
                f"  close its range of releases in the record of {run.case.family}: set until={hf.VERSION!r}",
                pytrace=False,
            )
        if not shown or known.explained is None or not run.lens:
            return
        difference = next(d for d in run.differences() if d.site in shown)
        explanation = explain(run, difference)
        assert explanation is not None, f"{known.name}: explained by no deviation, and the record says {known.explained!r}"
        assert explanation[0].name == known.explained

    def differs(self, run: Run, point: Point, found: Mapping[Found, Outcome]) -> NoReturn:
        """Fail, naming the first difference of the whole run that is not known, which is where to look."""
        wrong = {place: outcome for place, outcome in found.items() if outcome.verdict == "differs"}
        (mode, site), outcome = max(wrong.items(), key=lambda item: item[1].ratio)
        known = {name for (_, name), o in run.outcomes.items() if o.verdict == "known"}
        first = next((d for d in run.differences() if d.site not in known), run.first_difference())
        assert first is not None
        text = failure(run, first, self.again(point.case))
        if first.site not in {name for _, name in wrong}:
            text += f"\n  this test          {site} ({mode}) is off by {outcome.error:.1e} (bar {outcome.bar:.0e})"
        pytest.fail(text, pytrace=False)

    def covering(self, case: Case, site: str) -> list[Known]:
        """What is known at such a site, and then what is known upstream of it."""
        direct = [known for known in case.known if known.at(site)]
        return direct + [known for known in case.known if known.downstream]

    def check(self, case: Case, site: str, outcome: Outcome, explanation: str | None = None) -> None:
        """Record and judge an outcome that has no unit: a cache's, a generation's. What is known upstream of it covers it."""
        direct = [known for known in case.known if known.at(site)]
        if outcome.verdict == "differs" and (covering := self.covering(case, site)):
            outcome = outcome.known(covering[0].note)
        self.keep(case, "accumulated", site, outcome)
        if outcome.verdict == "differs":
            pytest.fail(plain_failure(case, site, outcome, self.again(case), explanation), pytrace=False)
        if outcome.verdict == "same" and any(known.must_show(case.precision) for known in direct):
            pytest.fail(
                f"{case.setting}\n  a known difference no longer appears at {site}: {direct[0].note}",
                pytrace=False,
            )
        if outcome.verdict in ("absent", "not covered"):
            pytest.skip(f"{outcome.verdict}: {outcome.note}")
