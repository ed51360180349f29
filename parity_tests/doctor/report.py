"""What the doctor says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from parity_tests.doctor.halves import Alike
from parity_tests.doctor.numbers import Oddity
from parity_tests.doctor.patient import Patient
from parity_tests.doctor.reading import Reading
from parity_tests.doctor.repair import Absence
from parity_tests.doctor.settings import writable
from parity_tests.doctor.statistics import WORTH
from parity_tests.doctor.steps import Found, Step
from parity_tests.doctor.text import Text

NONE_FITS = "no known mistake fits"


@dataclass(frozen=True, kw_only=True)
class Examined:
    """All that was found out about a checkpoint. unread: why no text was read; "" where one was."""

    patient: Patient
    oddities: list[Oddity] = field(default_factory=list)
    alike: Alike | None = None
    text: Text | None = None
    reading: Reading | None = None
    found: Found | None = None
    unread: str = ""

    @property
    def ignorant(self) -> bool:
        """Whether the model, repaired or not, reads no better than who knows only how often each token occurs."""
        return self.found is not None and self.reading is not None and self.found.best >= self.reading.ignorant()

    @property
    def steps(self) -> tuple[Step, ...]:
        """The repairs that are worth the name, of a model that then reads."""
        if self.found is None or self.ignorant or self.harm is not None:
            return ()
        return self.found.steps

    @property
    def harm(self) -> Step | None:
        """The block that does harm, where that is what was found."""
        last = self.found.steps[-1] if self.found is not None and self.found.steps else None
        return last if last is not None and isinstance(last.repair, Absence) else None

    @property
    def rows_odd(self) -> bool:
        """Whether q's and k's rows seem to be in the other order, where no text says that they are not."""
        return self.alike is not None and self.alike.odd and (self.found is None or self.ignorant or bool(self.steps))

    @property
    def odd(self) -> bool:
        """Whether anything was found."""
        return bool(self.oddities or self.steps or self.rows_odd or self.ignorant or self.harm)


def lines(examined: Examined) -> Iterator[str]:
    """The report, a line each."""
    patient = examined.patient
    n = sum(t.numel() for t in patient.parameters.values())
    yield f"{patient.record.name}, {getattr(patient.config, 'n_layers', '?')} layers, {_count(n)} parameters"
    yield from (f"odd: {oddity.says}" for oddity in examined.oddities)
    if examined.alike is not None:
        odd = "odd: " if examined.rows_odd else ""
        so = ", as if their rows were in the other order" if examined.rows_odd else ""
        yield f"{odd}norms of q's and k's rows correlate by {examined.alike}{so}"
    if examined.unread:
        yield f"no text is read: {examined.unread}"
    if examined.found is not None and examined.reading is not None and examined.text is not None:
        yield from _read(examined, examined.found, examined.reading, examined.text)
    elif not examined.odd:
        yield "nothing odd, as far as that shows without a text"


def _count(n: int) -> str:
    return f"{n / 1e9:.1f}B" if n >= 10**9 else f"{n / 1e6:.0f}M" if n >= 10**6 else f"{n / 1e3:.0f}k"


def _read(examined: Examined, found: Found, reading: Reading, text: Text) -> Iterator[str]:
    knows = "nearness by chance" if reading.unit == "piece" else "knowing how often each token occurs"
    chance = f"{knows} alone, one loses {reading.ignorant():.3f} nats a {reading.unit}"
    yield f"read: {reading.n_tokens} tokens, {text.source}; {chance}"
    if not examined.steps:
        yield f"as it is {found.loss:.3f}; {NONE_FITS} ({found.tried} were tried)"
    before = "as it is"
    for step in examined.steps:
        yield f"{before} {step.before:.3f}; with {step.repair.undone} {step.after:.3f}: {step.repair.so}"
        by = f"on {step.gain.n} that it was not chosen by"
        yield f"    gained {step.gain} nats a {reading.unit}, {by}; {step.tried} repairs were tried"
        if step.alike:
            yield f"    cannot be told apart from it here: {'; '.join(repair.name for repair in step.alike)}"
        before = "so repaired"
    if examined.harm is not None:
        harm = examined.harm
        yield f"odd: with {harm.repair.undone} {harm.after:.3f}, {harm.gain} less: {harm.repair.so}"
    elif examined.ignorant:
        yield "it reads no better than that: untrained, of another text, or damaged in a way that is not known here"
    if found.small is not None and not examined.ignorant:
        small = found.small
        less = (
            f"less than the {WORTH} that are worth the name"
            if small.gain.mean < WORTH
            else "not surely: read more by --text"
        )
        kind = "small" if small.gain.mean < WORTH else "perhaps"
        yield f"{kind}: with {small.repair.undone} {small.after:.3f}, {small.gain} nats a {reading.unit} less, {less}"
    if examined.steps and (why := writable(examined.steps[-1].patient)):
        yield f"cannot be written: {why}"
