"""What there is to test: the cases, and the points of a case, by the names that test ids carry."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from parity_tests.families import FAMILIES
from parity_tests.harness.case import TRAINED, Case
from parity_tests.harness.checkpoints import asked_for
from parity_tests.harness.names import PRECISIONS
from parity_tests.harness.record import Alone, Backend, Deviation, Family
from weight_mapping import open_checkpoint
from weight_mapping.config import find_family, parse_config, read_config

TRAINED_PRECISIONS = ("f64", "f32")
"""A trained model is compared in half precision only when asked: thirty layers say no more of rounding than three."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the command line chose; None or empty means everything. refused: the checkpoints that cannot be verified."""

    families: list[str] | None = None
    precisions: list[str] | None = None
    attention: list[str] | None = None
    experts: list[str] | None = None
    device: str = "cpu"
    checkpoints: list[Path] | None = None
    trained: bool = False
    refused: Collection[Path] = ()

    def takes(self, backend: Backend) -> bool:
        """Whether a backend was chosen."""
        attention = not self.attention or backend.attention in self.attention
        return attention and (not self.experts or backend.experts in self.experts)


@dataclass(frozen=True)
class Point:
    """One kind of site of one case, in one mode: `llama-gqa-f64-eager-isolated-attn`. Below float64, where nothing is
    explained, one test compares both modes.
    """

    case: Case
    mode: str
    kind: str

    def __str__(self) -> str:
        return f"{self.case}-{self.mode}-{self.kind}"


def cases(options: Options, precisions: tuple[str, ...]) -> list[Case]:
    """The cases that the options choose, among those that a test takes part in."""
    chosen = [p for p in precisions if p in (options.precisions or precisions)]
    found = []
    if not options.checkpoints:
        for family in FAMILIES.values():
            if options.families is not None and family.name not in options.families:
                continue
            found += [
                Case(family.name, variant, precision, backend, options.device)
                for variant in family.variants
                for precision in chosen
                for backend in backends_of(family.name, variant, precision)
                if options.takes(backend)
            ]
    for path in trained_checkpoints(options):
        family = FAMILIES[family_of(path)]
        found += [
            Case(family.name, f"{TRAINED}{path}", precision, backend, options.device)
            for precision in chosen
            if precision in (options.precisions or TRAINED_PRECISIONS)
            for backend in _asked_of_trained(family, options)
            if precision in backend.precisions
        ]
    return found


def _asked_of_trained(family: Family, options: Options) -> list[Backend]:
    """The first backend, or those that were asked for; each once, though a record may have one in several settings."""
    if not (options.attention or options.experts):
        return list(family.backends[:1])
    found: dict[str, Backend] = {}
    for backend in filter(options.takes, family.backends):
        found.setdefault(str(backend), backend)
    return list(found.values())


DEEP = 10
"""A variant of more layers than this shows their order: in blocks, layers, models and caches. A backend, generation, training
and the invariants show nothing there that they do not elsewhere.
"""

ROUNDED = 2
"""So many variants of a family, the first ones, are compared in every precision and with every backend. What rounding does
depends on these and hardly on the flags, which the others are about: those are compared under the lens with every backend,
and in float32 and bfloat16 with one.
"""


def is_deep(family: str, variant: str) -> bool:
    """Whether a variant has more than `DEEP` layers."""
    return getattr(config_at(family, variant), "n_layers", 0) > DEEP


@cache
def alone_in(family: str, variant: str) -> Alone | None:
    """What a variant is there for, when it is for one thing alone."""
    return next((alone for alone in FAMILIES[family].alone if alone.concerns(variant)), None)


@cache
def backends_of(family: str, variant: str, precision: str) -> tuple[Backend, ...]:
    """The backends that a variant is compared with in a precision."""
    record = FAMILIES[family]
    fitting = tuple(b for b in record.backends if b.serves(variant) and precision in b.precisions)
    if alone_in(family, variant):
        return fitting[:1] if precision == "f64" else ()
    first = list(record.variants).index(variant) < ROUNDED
    if precision == "f16" and not first:
        return ()
    everything = not is_deep(family, variant) and (first or precision == "f64")
    return fitting if everything else fitting[:1]


def rounded(case: Case) -> bool:
    """Whether this variant is one of those that show what rounding does."""
    return case.trained or list(case.record.variants).index(case.variant) < ROUNDED


def usual(case: Case) -> bool:
    """Whether this is the backend that its precision is usually run with; of a trained model, any that was asked for."""
    if case.trained:
        return True
    backends = backends_of(case.family, case.variant, case.precision)
    return case.backend == backends[0 if case.precision == "f64" else -1]


@cache
def family_of(path: Path) -> str:
    """The family of a checkpoint, by the name that config.json has for it. Errors: MappingError."""
    checkpoint = open_checkpoint(path)
    return find_family(checkpoint.config, checkpoint.layout).layouts["hf"].names[0]


def trained_checkpoints(options: Options) -> list[Path]:
    """The checkpoints that were asked for, each by the folder or file that it is, without those that were refused."""
    asked = (path for path in asked_for(options.checkpoints, options.trained) if path not in options.refused)
    return list(dict.fromkeys(_opened(path) for path in asked))


@cache
def _opened(path: Path) -> Path:
    return open_checkpoint(path).path if path.is_file() else path  # a file of a folder stands for the folder


def points(options: Options, level: str) -> list[Point]:
    """Every point of a level."""
    found = []
    for case in cases(options, PRECISIONS):
        alone = alone_in(case.family, case.variant)
        if alone and level not in alone.levels:
            continue
        for mode in ("isolated", "accumulated") if case.precision == "f64" else ("both",):
            for kind, its_level, fed in kinds_of(case.family, case.variant):
                if its_level == level and (fed or mode != "isolated") and (alone is None or alone.shows(kind)):
                    found.append(Point(case, mode if fed else "accumulated", kind))
    return found


@cache
def kinds_of(family: str, variant: str) -> list[tuple[str, str, bool]]:
    """The kinds of sites of a variant, or of a trained checkpoint."""
    return FAMILIES[family].kinds(config_at(family, variant))


def deviation_cases(options: Options) -> list[tuple[Case, Deviation]]:
    """Every deviation, with the smallest of the variants in which it is live; those for one thing alone come last."""
    tiny = [c for c in cases(options, ("f64",)) if c.backend == c.record.backends[0] and not c.trained]
    smallest_first = sorted(
        tiny, key=lambda case: (alone_in(case.family, case.variant) is not None, getattr(config_of(case), "n_layers", 0))
    )
    found: dict[tuple[str, int], tuple[Case, Deviation]] = {}
    for case in smallest_first:
        for place, deviation in enumerate(case.record.deviations):
            if deviation.concerns(case.variant):
                found.setdefault((case.family, place), (case, deviation))
    return list(found.values())


@cache
def config_at(family: str, variant: str) -> Any:
    """The reference's config of a variant, or of a trained checkpoint, without its weights."""
    if variant.startswith(TRAINED):
        return read_config(open_checkpoint(variant.removeprefix(TRAINED)))[1]
    return parse_config(FAMILIES[family].variants[variant], "hf")[1]


def config_of(case: Case) -> Any:
    """The same of a case."""
    return config_at(case.family, case.variant)


def raw_config_of(case: Case) -> Mapping[str, Any]:
    """What the file of a case itself says: config.json, or GGUF's metadata."""
    return open_checkpoint(case.source).config if case.trained else case.record.variants[case.variant]
