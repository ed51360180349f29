"""What a test does with an outcome: put it on record, and fail with a message that a person can act on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import NoReturn

import pytest

from parity_tests.harness import hf, known
from parity_tests.harness.case import Case, reference, twin
from parity_tests.harness.checkpoints import cannot_hold
from parity_tests.harness.compare import Outcome, absent, not_covered, refused, worse
from parity_tests.harness.explanation import Compared, explain_site
from parity_tests.harness.failure import failure, plain_failure
from parity_tests.harness.names import kind_of
from parity_tests.harness.points import Point, usual
from parity_tests.harness.record import FORWARD, LOADING, Known
from parity_tests.harness.report import Result
from parity_tests.harness.run import Run, compare
from parity_tests.harness.sides import Asked, Law, mine, theirs

Found = tuple[str, str]
"""A mode and a site."""

_told: set[Case] = set()
"""The cases of which it was told that transformers gives nothing: once is enough."""


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
        """The comparison of a case; where the installed transformers lacks it, that is recorded and the test skipped. Where
        it raises, that is judged once, and every other site of the case is not covered.
        """
        if case.trained and (note := cannot_hold(case.source, hf.loaded_as(case.precision))):
            self.keep(case, mode, site, not_covered(note))
            pytest.skip(f"not covered: {note}")
        try:
            if (left := hf.left_random(twin(case))) and known.excuse(case, LOADING, refused("")) is not None:
                raise hf.Crashed(f"transformers leaves {', '.join(left)} random", stage=LOADING)
            run = compare(case)
        except hf.Absent as reason:
            self.keep(case, mode, site, absent(str(reason)))
            pytest.skip(f"absent: {reason}")
        except hf.Crashed as reason:
            self._gives_nothing(case, mode, site, reason)
        for stage in (LOADING, FORWARD):
            if (difference := known.must_show(case, stage)) is not None:
                self._no_longer(case, stage, difference)
        return run

    def _gives_nothing(self, case: Case, mode: str, site: str, reason: hf.Crashed) -> NoReturn:
        stage = reason.stage or FORWARD
        if case in _told:
            note = f"transformers gives nothing here, see {case.family} {case.name} at {stage}"
            self.keep(case, mode, site, not_covered(note))
            pytest.skip(f"not covered: {note}")
        _told.add(case)
        self.check(case, stage, refused(str(reason), reason.raised))
        pytest.skip(f"known: {reason}")

    @contextmanager
    def crashing(self, case: Case, site: str) -> Iterator[None]:
        """Where transformers may raise inside a test: that is judged at `site`, and where it is known the test ends."""
        try:
            yield
        except hf.Crashed as reason:
            self.check(case, site, refused(str(reason), reason.raised))
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
            self._unless_mended(run, point, found)
            self.differs(run, point, found)
        for difference in known.active(case):
            shown = [kind for kind in difference.sites if self.shows(run, kind)]
            if shown[:1] == [point.kind]:
                self.still(difference, run, point.kind)
        notes = {outcome.note for outcome in found.values() if outcome.verdict not in ("same", "known")}
        if all(outcome.verdict == "absent" for outcome in found.values()):
            pytest.skip(f"absent: {notes.pop()}")

    def shows(self, run: Run, kind: str) -> bool:
        """Whether this release shows a kind of site at all."""
        return any(kind_of(site) == kind and outcome.verdict != "absent" for (_, site), outcome in run.outcomes.items())

    def still(self, difference: Known, run: Run, kind: str) -> None:
        """A known difference must show at this kind of site, alone or in place."""
        shown = any(outcome.verdict == "known" and kind_of(site) == kind for (_, site), outcome in run.outcomes.items())
        if not shown and known.must_show(run.case, kind) is difference:
            self._no_longer(run.case, kind, difference)

    def _unless_mended(self, run: Run, point: Point, found: Mapping[Found, Outcome]) -> None:
        """Where the reference agrees without what is known of this release, that is what there is to say."""
        differences = known.mended(point.case)
        if differences and all(run.undeparted.unmarked[place].verdict != "differs" for place in found):
            self._no_longer(point.case, point.kind, *differences)

    def _no_longer(self, case: Case, site: str, *differences: Known) -> NoReturn:
        notes = " or ".join(one.note for one in differences)
        pytest.fail(
            f"{case.setting}\n  a known difference no longer appears at {site}: {notes}\n"
            f"  close its range of releases in the record of {case.family}: set until={hf.VERSION!r}",
            pytrace=False,
        )

    def differs(self, run: Run, point: Point, found: Mapping[Found, Outcome]) -> NoReturn:
        """Fail, naming the first difference of the whole run that is not known, which is where to look."""
        wrong = {place: outcome for place, outcome in found.items() if outcome.verdict == "differs"}
        (mode, site), outcome = max(wrong.items(), key=lambda item: item[1].ratio)
        excused = {name for (_, name), o in run.outcomes.items() if o.verdict == "known"}
        first = next((d for d in run.differences() if d.site not in excused), run.first_difference())
        assert first is not None
        text = failure(run, first, self.again(point.case))
        if first.site not in {name for _, name in wrong}:
            text += f"\n  this test          {site} ({mode}) is off by {outcome.error:.1e} (bar {outcome.bar:.0e})"
        pytest.fail(text, pytrace=False)

    def check(self, case: Case, site: str, outcome: Outcome, explanation: str | None = None) -> None:
        """Record and judge an outcome that has no unit, and in which the reference has no part, or no other than `judge`."""
        if outcome.verdict == "differs" and (excuse := known.excuse(case, site, outcome)) is not None:
            outcome = outcome.known(excuse.note)
        self.keep(case, "accumulated", site, outcome)
        if outcome.verdict == "differs":
            pytest.fail(plain_failure(case, site, outcome, self.again(case), explanation), pytrace=False)
        if outcome.verdict == "same" and (difference := known.must_show(case, site)) is not None:
            self._no_longer(case, site, difference)
        if outcome.verdict in ("absent", "not covered"):
            pytest.skip(f"{outcome.verdict}: {outcome.note}")

    def judge(self, case: Case, site: str, compared: Compared) -> None:
        """The same of an outcome that depends on the reference: held against what is expected of this release. At a site
        that a known difference has as its own, the plain reference must not do.
        """
        outcome = compared(partial(known.expected, case, site=site))
        explanation = None
        if outcome.verdict == "differs" and known.excuse(case, site, outcome) is None:
            differences = known.mended(case, site)
            if differences and compared(partial(reference, case)).verdict == "same":
                self._no_longer(case, site, *differences)
            found = explain_site(case, site, compared)
            explanation = f'"{found.name}"' if found else f"none of the deviations that {case.family} lists"
        elif outcome.verdict == "same" and (own := known.explained_at(case, site)) is not None:
            plain = compared(partial(reference, case))
            outcome = plain.known(own.note) if plain.verdict == "differs" else outcome
        self.check(case, site, outcome, explanation)

    def hold(self, case: Case, site: str, law: Law, *, of_both: bool = True) -> None:
        """What must hold of either side by itself, or of transformers alone. Where it is known to depart in a way that breaks
        the law on the reference, too, it has to give what the reference gives then.
        """
        asked = Asked(partial(theirs, case))
        outcome = law(asked)
        own = known.explained_at(case, site)
        if outcome.verdict == "differs" and (own is not None or known.departures(case)):
            wrong = partial(mine, case, model=known.expected(case))
            if law(wrong).verdict == "differs" and (alike := asked.alike(wrong)).verdict == "same":
                outcome = alike if own is None else outcome.known(own.note)
        if of_both and usual(case):
            outcome = worse(outcome, law(partial(mine, case)))  # the reference has no backends, and is asked once
        self.check(case, site, outcome)

