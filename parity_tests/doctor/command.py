"""`hf-parity doctor PATH`, or `python -m parity_tests doctor PATH`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import track

import weight_mapping
from parity_tests.doctor.examination import examine
from parity_tests.doctor.patient import Patient
from parity_tests.doctor.repair import Repair
from parity_tests.doctor.report import Examined, lines
from parity_tests.doctor.settings import writable
from parity_tests.doctor.text import TOKENIZER, Text, TextError, ids_of
from weight_mapping import MappingError, open_checkpoint
from weight_mapping.config import is_harmless, render_config
from weight_mapping.container import Value

FOUND_NOTHING, FOUND, REFUSED = 0, 1, 4


def main(arguments: Sequence[str]) -> int:
    """Examine a checkpoint, and say what is wrong with it."""
    chosen = _parser().parse_args(arguments)
    try:
        if chosen.fix is not None and chosen.fix.exists() and (not chosen.fix.is_dir() or os.listdir(chosen.fix)):
            raise MappingError("is not an empty folder; give another to write to", where=chosen.fix)
        text: Text | Path | None = chosen.text if chosen.ids is None else ids_of(chosen.ids, chosen.mask)
        examined = examine(chosen.path, _progress, text=text, n_layers=chosen.layers)
        for line in lines(examined):
            print(line)
        if chosen.fix is not None:
            _fix(examined, chosen.path, chosen.fix)
    except (MappingError, TextError) as error:
        print(error, file=sys.stderr)
        return REFUSED
    return FOUND if examined.odd else FOUND_NOTHING


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hf-parity doctor",
        description="Is a trained checkpoint damaged? Parity cannot tell, as both sides read the same file. "
        "Exit code 0: nothing was found; 1: a repair or something odd; 4: the checkpoint or the text was refused.",
    )
    parser.add_argument("path", type=Path, help="an HF folder or a GGUF file")
    given = parser.add_mutually_exclusive_group()
    given.add_argument("--text", type=Path, metavar="FILE", help="read this text instead of the doctor's own passages")
    given.add_argument(
        "--ids", type=Path, metavar="FILE", help="read these token ids, a passage a line: needs no tokenizer"
    )
    parser.add_argument("--mask", type=int, metavar="ID", help="with --ids: the token that hides others, of an encoder")
    parser.add_argument("--fix", type=Path, metavar="OUT", help="write the repaired checkpoint to this folder")
    parser.add_argument(
        "--layers",
        type=_count,
        metavar="N",
        help="of the first N layers alone, for large models: what shows without a text",
    )
    return parser


def _count(given: str) -> int:
    if not given.isdecimal() or int(given) == 0:
        raise argparse.ArgumentTypeError("is no count of layers")
    return int(given)


def _progress(repairs: Sequence[Repair]) -> Iterable[Repair]:
    console = Console(stderr=True)
    if not console.is_terminal:
        print(f"trying {len(repairs)} repairs", file=sys.stderr, flush=True)
    return track(repairs, "trying repairs", console=console, transient=True, disable=not console.is_terminal)


def _fix(examined: Examined, path: Path, out: Path) -> None:
    """Write what the repairs made, or say why not."""
    if not examined.steps:
        print(f"nothing was repaired, and {out} is not written", file=sys.stderr)
        return
    patient = examined.steps[-1].patient
    if writable(patient) is not None:
        print(f"{out} is not written", file=sys.stderr)
        return
    weight_mapping.save(patient.written(), out, extra=_extra(patient, path))
    if (tokenizer := path / TOKENIZER).is_file():
        (out / TOKENIZER).write_bytes(tokenizer.read_bytes())
    print(f"the repaired checkpoint is in {out}")


def _extra(patient: Patient, path: Path) -> dict[str, Value]:
    """What config.json says that changes no result, and that is kept."""
    checkpoint = open_checkpoint(path)
    if checkpoint.layout != "hf":
        return {}
    written = render_config(patient.family, patient.config, next(iter(patient.parameters.values())).dtype)
    return {
        key: value
        for key, value in checkpoint.config.items()
        if key not in written and is_harmless(key, "hf", patient.family)
    }
