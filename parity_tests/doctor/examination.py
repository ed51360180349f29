"""One checkpoint, examined: the witnesses that need no text, and where there is one the search for repairs."""

from __future__ import annotations

from pathlib import Path

from parity_tests.doctor import halves, numbers
from parity_tests.doctor.patient import read
from parity_tests.doctor.reading import reading_of
from parity_tests.doctor.report import Examined
from parity_tests.doctor.search import Search, Track
from parity_tests.doctor.text import Text, TextError, own_text, text_of, words_of

NO_TOKENIZER = "there is no tokenizer that is read here; give ids by --ids"


def examine(path: Path, track: Track, *, text: Text | Path | None = None, n_layers: int | None = None) -> Examined:
    """All that can be found out about a checkpoint.

    text: tokens, or a file to be read with the checkpoint's tokenizer; without, the doctor's own passages. n_layers: of so many
    layers alone, which no text is read with. Errors: MappingError, TextError.
    """
    patient = read(path, n_layers)
    odd = numbers.oddities(patient)
    if any(oddity.fatal for oddity in odd):
        return Examined(patient=patient, oddities=odd, unread="what is not finite reads none")
    alike = halves.alike(patient)
    if n_layers is not None:
        return Examined(
            patient=patient, oddities=odd, alike=alike, unread="the first layers alone give no probabilities"
        )
    tokens = text if isinstance(text, Text) else _tokens(path, text)
    reading = NO_TOKENIZER if tokens is None else reading_of(patient, tokens)
    if isinstance(reading, str) and text is not None:
        raise TextError(f"{path}: {reading}")
    if isinstance(reading, str):
        return Examined(patient=patient, oddities=odd, alike=alike, unread=reading)
    found = Search(reading, track).run(patient)
    return Examined(patient=patient, oddities=odd, alike=alike, text=tokens, reading=reading, found=found)


def _tokens(path: Path, file: Path | None) -> Text | None:
    words = words_of(path)
    if words is None and file is not None:
        raise TextError(f"{path}: {NO_TOKENIZER}")
    return None if words is None else own_text(words) if file is None else text_of(file, words)
