"""One look at a checkpoint that parity found nothing wrong with: what shows at once, without trying any repair."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from parity_tests.doctor import halves, numbers
from parity_tests.doctor.patient import Patient, read
from parity_tests.doctor.reading import reading_of
from parity_tests.doctor.text import TextError, own_text, words_of

LARGEST = 200_000_000
"""Parameters of a model that reads a text unasked."""


def glance(path: Path) -> str | None:
    """What is odd about the checkpoint, in one line; None for nothing. Errors: MappingError."""
    patient = read(path)
    says = [oddity.says for oddity in numbers.oddities(patient)]
    alike = halves.alike(patient)
    if alike is not None and alike.odd:
        says.append(f"the rows of q and k seem to be in the other order ({alike})")
    with suppress(TextError):  # the tokenizer's fault, and no text was asked for
        says += [] if says else _loss(patient, path)
    more = f", and {len(says) - 1} more" if says[1:] else ""
    return f"{says[0]}{more}" if says else None


def _loss(patient: Patient, path: Path) -> list[str]:
    """Whether it reads the doctor's passages no better than by knowing their tokens."""
    words = words_of(path)
    if words is None or sum(t.numel() for t in patient.parameters.values()) > LARGEST:
        return []
    reading = reading_of(patient, own_text(words))
    if isinstance(reading, str):
        return []
    loss, knows = reading.mean_loss(patient.model()), reading.ignorant()
    return (
        [] if loss < knows else [f"it loses {loss:.1f} nats a token of a text, and guessing by frequency {knows:.1f}"]
    )
