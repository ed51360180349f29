"""What a person reads of a difference: where it is first, by how much, why perhaps, and how to see it again."""

from __future__ import annotations

from parity_tests.fixtures.identity import content_hash
from parity_tests.harness.case import Case
from parity_tests.harness.compare import Outcome
from parity_tests.harness.report import versions
from parity_tests.harness.run import Difference, Run, explain


def _number(x: float) -> str:
    return f"{x:.5g}"


def _how_well(error: float) -> str:
    return f"to {error:.0e}" if error else "exactly"


def failure(run: Run, difference: Difference, again: str) -> str:
    """The few lines that say what differs first, by how much, why perhaps, and how to see it again."""
    case, outcome = run.case, difference.outcome
    given = "" if difference.input_error is None else f"input agrees {_how_well(difference.input_error)}, "
    lines = [
        case.setting,
        f"  first difference   {difference.site}   {given}"
        + (outcome.note or f"output is off by {outcome.error:.1e} (bar {outcome.bar:.0e})"),
    ]
    if outcome.worst:
        place, theirs, mine = outcome.worst
        lines.append(
            f"  worst element      {list(place)}   transformers {_number(theirs)}   reference {_number(mine)}"
            f"   (batch {difference.traced.batch.name}, padding left out)"
        )
    lines.append(f"  explained by       {_explanation(run, difference)}")
    lines += _footer(case, again)
    return "\n".join(lines)


def _explanation(run: Run, difference: Difference) -> str:
    if not run.lens:
        return "not tried: run the same id with f64, where agreement is no accident of rounding"
    found = explain(run, difference)
    if found is None:
        return f"none of the {len(run.case.record.deviations)} deviations that {run.case.family} lists"
    deviation, error = found
    return f'"{deviation.name}" — with it the reference agrees {_how_well(error)}'


def _footer(case: Case, again: str) -> list[str]:
    found = versions()
    under = ", ".join(f"{name} {found[name]}" for name in ("transformers", "torch"))
    return [f"  under              {under}, fixture {content_hash()[:8]}", f"  again              pytest {again}"]


def plain_failure(case: Case, what: str, outcome: Outcome, again: str, explanation: str | None = None) -> str:
    """A failure that is not tied to one site: caches and generation."""
    lines = [
        case.setting,
        f"  difference         {what}   " + (outcome.note or f"off by {outcome.error:.1e} (bar {outcome.bar:.0e})"),
    ]
    if outcome.worst:
        place, theirs, mine = outcome.worst
        lines.append(f"  worst element      {list(place)}   {_number(theirs)} against {_number(mine)}")
    if explanation:
        lines.append(f"  explained by       {explanation}")
    return "\n".join(lines + _footer(case, again))
