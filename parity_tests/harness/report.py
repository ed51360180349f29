"""What a person and a program read at the end: the verdict, report.json. Imports nothing that takes long."""

from __future__ import annotations

import json
import math
import platform
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from parity_tests.fixtures.identity import content_hash
from parity_tests.harness import vocabulary
from parity_tests.harness.names import PRECISIONS, kind_of

if TYPE_CHECKING:
    from parity_tests.harness.case import Case
    from parity_tests.harness.compare import Outcome

VERSIONED = ("torch", "transformers", "safetensors", "accelerate")
LEVELS = (
    *("config", "block", "layer", "model", "cache", "generation", "training", "invariant", "ways in", "outputs", "classes"),
    "initial",
)
SHORT = {
    "config": "conf.",
    "generation": "gen.",
    "training": "train.",
    "invariant": "inv.",
    "ways in": "ways",
    "outputs": "out.",
    "initial": "init.",
}
ONE_PASS = ("block", "layer", "model")


@dataclass(frozen=True)
class Result:
    """One row of report.json."""

    family: str
    variant: str
    precision: str
    attention: str
    experts: str | None
    device: str
    level: str
    site: str
    mode: str
    error: float | None
    bar: float | None
    bits_equal: bool
    verdict: str
    note: str
    trained: bool

    @classmethod
    def of(cls, case: Case, level: str, mode: str, site: str, outcome: Outcome) -> Result:
        error, bar = (None if math.isnan(x) else min(x, 1e308) for x in (outcome.error, outcome.bar))
        return cls(
            family=case.family,
            variant=case.name,
            precision=case.precision,
            attention=case.backend.attention,
            experts=case.backend.experts or None,
            device=case.device,
            level=level,
            site=site,
            mode=mode,
            error=error,
            bar=bar,
            bits_equal=outcome.bits_equal,
            verdict=outcome.verdict,
            note=outcome.note,
            trained=case.trained,
        )

    @property
    def ratio(self) -> float:
        """error / bar; above 1 is a difference, 0 where there is nothing to compare."""
        if self.error is None or self.bar is None:
            return 0.0
        return self.error / self.bar if self.bar else (math.inf if self.error else 0.0)


@cache
def versions() -> dict[str, str]:
    """Of everything that could move a result."""
    found = {name: metadata.version(name) for name in VERSIONED}
    return found | {"python": platform.python_version()}


def device_name(device: str) -> str:
    """`cpu`, or the accelerator by its name."""
    if not device.startswith("cuda"):
        return device
    import torch

    return f"{device} ({torch.cuda.get_device_name()})" if torch.cuda.is_available() else device


def header(device: str, checkpoints: Iterable[Path] = ()) -> list[str]:
    """What stands above a test run; of each checkpoint, what its files speak of and it does not have."""
    found = ", ".join(f"{name} {version}" for name, version in versions().items())
    noted = [f"parity: {note}" for path in checkpoints for note in vocabulary.notes(path)]
    return [f"parity: {found}", f"parity: device {device_name(device)}, fixtures {content_hash()[:8]}", *noted]


def write(results: Sequence[Result], folder: Path, device: str) -> Path:
    """Write report.json; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "report.json"
    rows = [asdict(result) for result in results]
    content = {"versions": versions(), "device": device_name(device), "fixtures": content_hash(), "results": rows}
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path


# --- the verdict ---


COMPARED = ("same", "known", "differs")


def _level(rows: Sequence[Result], level: str) -> Text:
    compared = [r for r in rows if r.level == level and r.verdict in ("same", "differs")]
    wrong = sum(r.verdict == "differs" for r in compared)
    if wrong:
        return Text(f"{wrong} of {len(compared)} ✗", "bold red")
    return Text(f"{len(compared)} ✓", "green") if compared else Text("–", "dim")


def _precision(rows: Sequence[Result], precision: str) -> tuple[Text, Text]:
    measured = [r for r in rows if r.precision == precision and r.verdict in COMPARED and r.level != "generation"]
    plain = [r for r in measured if r.attention == "eager" and r.experts in (None, "eager") and r.level in ONE_PASS]
    worst = max((r.ratio for r in measured if r.verdict != "known"), default=None)
    bits = f"{sum(r.bits_equal for r in plain) / len(plain):.0%}" if plain else "–"
    return Text("–" if worst is None else f"{worst:.0e}", "bold red" if worst and worst > 1 else ""), Text(bits)


def verdict(results: Sequence[Result], device: str) -> Table:
    """A family a row, or a trained checkpoint: sites compared at each level; for each precision the worst error over its bar,
    and the share of sites that agree bit for bit under eager attention, in one pass; what is known, absent or not covered.
    """
    families: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        families[f"{result.family}: {result.variant}" if result.trained else result.family].append(result)
    precisions = [p for p in PRECISIONS if any(r.precision == p for r in results)]
    levels = [level for level in LEVELS if any(r.level == level for r in results)]
    found = versions()
    title = f"transformers {found['transformers']} against the reference (torch {found['torch']}, {device_name(device)})"
    looks = {"title_justify": "left", "caption_justify": "left", "title_style": "bold", "padding": (0, 1, 0, 0)}
    table = Table(title=title, box=SIMPLE_HEAD, **looks)
    table.add_column("\nfamily", no_wrap=True)
    for level in levels:
        table.add_column(f"\n{SHORT.get(level, level)}", justify="right", no_wrap=True)
    for precision in precisions:
        table.add_column(f"{precision}\n/bar", justify="right", no_wrap=True)
        table.add_column("\nbits", justify="right", no_wrap=True)
    for heading in ("\nknown", "\nabsent", "not\ncovered"):
        table.add_column(heading, justify="right", no_wrap=True)
    for family, rows in sorted(families.items()):
        others = (sum(r.verdict == v for r in rows) for v in ("known", "absent", "not covered"))
        cells = [cell for precision in precisions for cell in _precision(rows, precision)]
        table.add_row(family, *(_level(rows, level) for level in levels), *cells, *(str(n) if n else "–" for n in others))
    table.caption = _summary(results)
    return table


def _summary(results: Sequence[Result]) -> Text:
    compared = [r for r in results if r.verdict in COMPARED]
    wrong = sum(r.verdict == "differs" for r in compared)
    head = f"{wrong} of {len(compared)} sites DIFFER" if wrong else f"all {len(compared)} sites agree"
    if known := sum(r.verdict == "known" for r in compared):
        head += f", but for {known} in known differences" if not wrong else f"; {known} more are known"
    lines = [head]
    for word in ("known", "absent", "not covered"):
        found: dict[str, list[Result]] = defaultdict(list)
        for r in results:
            if r.verdict == word:
                found[r.note].append(r)
        lines += [f"{word}: {_where(rows)}: {note}" for note, rows in sorted(found.items())]
    return Text("\n".join(lines), "bold red" if wrong else "green")


def _where(rows: Sequence[Result]) -> str:
    """Families, and as much of the rest as all rows share."""
    parts = [", ".join(sorted({r.family for r in rows}))]
    for values in ({r.variant for r in rows}, {r.precision for r in rows}, {r.attention for r in rows}):
        parts += values if len(values) == 1 else []
    kinds = sorted({kind_of(r.site) for r in rows})
    return " ".join([*parts, *(kinds if len(kinds) <= 2 else [f"{len(rows)} sites"])])


def show(results: Iterable[Result], device: str, console: Console | None = None) -> None:
    """Print the verdict."""
    console = console or Console()
    table = verdict(list(results), device)
    console.width = max(console.width, Measurement.get(console, console.options.update(width=300), table).maximum)
    console.print(table)
