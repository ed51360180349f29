"""The verdict on every item after a run: what passed, what failed, what was not run, and what went missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table
from rich.text import Text

from parity_tests.seeds.carried import frozen, items_of, shortened
from parity_tests.seeds.items import ITEMS, SECTIONS, Item, Section

Ran = tuple[str, str]
"""How a test ended, and its kind."""


@dataclass
class Shown:
    """What a run says of one item."""

    item: Item
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    kinds: set[str] = field(default_factory=set)
    missing: list[str] = field(default_factory=list)
    unlisted: list[str] = field(default_factory=list)
    whole: bool = True

    @property
    def verdict(self) -> str:
        """In words. In a run of a part of the tests, what was not run is no more than that."""
        if self.failed:
            return f"{self.failed} fail"
        if self.missing and self.whole:
            return f"{len(self.missing)} kinds of tests are missing: {self.missing[0]}"
        if self.unlisted and self.whole:
            return f"not in the frozen list: {self.unlisted[0]}"
        if not self.passed:
            return "absent here" if self.skipped else "no test carries it" if self.whole else "not run"
        return "✓" if not self.missing else "✓ as far as it was run"

    @property
    def right(self) -> bool:
        return self.verdict[0] == "✓" or self.verdict in ("absent here", "not run")


def judge(ran: Iterable[Ran], whole: bool) -> list[Shown]:
    """Every item. whole: all tests were asked for, so that what is not there is missing."""
    found = {item.id: Shown(item, whole=whole) for item in ITEMS}
    for outcome, kind in ran:
        for name in items_of(kind):
            shown = found[name]
            shown.kinds.add(shortened(kind))
            setattr(shown, outcome, getattr(shown, outcome) + 1)
    listed = frozen()
    for name, shown in found.items():
        kinds = set(listed.get(name, {}).get("kinds", ()))
        shown.missing, shown.unlisted = sorted(kinds - shown.kinds), sorted(shown.kinds - kinds)
    return list(found.values())


def _sections(found: Iterable[Shown]) -> Iterator[tuple[Section, list[Shown]]]:
    by_id: dict[str, Shown] = {shown.item.id: shown for shown in found}
    for section in SECTIONS:
        yield section, [by_id[item.id] for item in section.items]


def _summary(items: list[Shown]) -> Text:
    """How many are shown, and what became of the others."""
    others = Counter(shown.verdict for shown in items if shown.verdict[0] != "✓")
    said = [f"{len(items) - others.total()} of {len(items)}", *(f"{n} {verdict}" for verdict, n in others.items())]
    colour = "bold red" if not all(shown.right for shown in items) else "yellow" if others else "green"
    return Text(", ".join(said), colour)


def show(found: list[Shown], *, each: bool) -> None:
    """Print it: each item by section of the seeds, or the sections alone and what is wrong."""
    table = Table(title="Items of the seeds", title_justify="left")
    for heading in ("seed", "section", "item", "what it says", "tests", "verdict", "in the reference", "run"):
        if each or heading not in ("what it says", "in the reference", "run"):
            table.add_column(heading, justify="right" if heading == "tests" else "left", overflow="fold")
    listed = frozen()
    for section, items in _sections(found):
        here = items if each else [shown for shown in items if not shown.right]
        if not each:
            tests = sum(shown.passed + shown.failed for shown in items)
            table.add_row(section.seed, section.heading, f"{len(items)}", f"{tests}", _summary(items))
        for number, shown in enumerate(here):
            first = number == 0
            verdict = Text(shown.verdict, "green" if shown.right else "bold red")
            cells: list[str | Text] = [
                section.seed if first and each else "",
                section.heading if first and each else "",
                shown.item.id,
            ]
            said = [shown.item.says] if each else []
            more = [", ".join(section.symbols), listed.get(shown.item.id, {}).get("run", "")] if each else []
            table.add_row(*cells, *said, f"{shown.passed + shown.failed}", verdict, *more)
    console = Console()
    console.print(table)
    console.print(Text.assemble("items of the seeds that are shown: ", _summary(found)))
