"""What a test does with an outcome: put it on record, and fail with a message that a person can act on."""

from __future__ import annotations

from typing import NoReturn

import pytest

from parity_tests.harness import hf
from parity_tests.harness.case import Case, Run, compare
from parity_tests.harness.compare import Outcome, absent
from parity_tests.harness.points import Point
from parity_tests.harness.record import kind_of
from parity_tests.harness.report import Result, as_property, failure, plain_failure


class Recorder:
    """Belongs to one test."""

    def __init__(self, request: pytest.FixtureRequest):
        self.node = request.node
        marker = self.node.get_closest_marker("level")
        self.level = marker.args[0] if marker else ""

    def again(self, case: Case) -> str:
        """The test's id, and the options without which it would not be collected."""
        nodeid = self.node.nodeid
        options = [f"--device {case.device}"] if case.device != "cpu" else []
        options += [f"--checkpoint {case.source}"] if case.trained else []
        return " ".join([nodeid, *options])

    def keep(self, case: Case, mode: str, site: str, outcome: Outcome) -> Outcome:
        """Put an outcome on record."""
        self.node.user_properties.append(as_property(Result.of(case, self.level, mode, site, outcome)))
        return outcome

    def run(self, case: Case, mode: str, site: str) -> Run:
        """The comparison of a case; where the installed transformers lacks it, that is recorded and the test skipped."""
        try:
            return compare(case)
        except hf.Absent as reason:
            self.keep(case, mode, site, absent(str(reason)))
            pytest.skip(f"absent: {reason}")

    def point(self, point: Point) -> None:
        """Judge one kind of site over all layers and batches."""
        run = self.run(point.case, point.mode, point.kind)
        found = {
            site: self.keep(point.case, point.mode, site, outcome)
            for (mode, site), outcome in run.outcomes.items()
            if mode == point.mode and kind_of(site) == point.kind
        }
        assert found, f"no site {point.kind} in {point.case}: the record and the model disagree"
        if any(outcome.verdict == "differs" for outcome in found.values()):
            self.differs(run, point, found)
        if all(outcome.verdict == "absent" for outcome in found.values()):
            pytest.skip(f"absent: {next(iter(found.values())).note}")

    def differs(self, run: Run, point: Point, found: dict[str, Outcome]) -> NoReturn:
        """Fail, naming the first difference of the whole run, which is where to look."""
        wrong = {site: outcome for site, outcome in found.items() if outcome.verdict == "differs"}
        site, outcome = max(wrong.items(), key=lambda item: item[1].ratio)
        first = run.first_difference()
        assert first is not None
        text = failure(run, first, self.again(point.case))
        if first.site not in wrong:
            text += f"\n  this test          {site} ({point.mode}) is off by {outcome.error:.1e} (bar {outcome.bar:.0e})"
        pytest.fail(text, pytrace=False)

    def check(self, case: Case, site: str, outcome: Outcome, explanation: str | None = None) -> None:
        """Record and judge an outcome that has no unit: a cache's, a generation's."""
        self.keep(case, "accumulated", site, outcome)
        if outcome.verdict == "differs":
            pytest.fail(plain_failure(case, site, outcome, self.again(case), explanation), pytrace=False)
