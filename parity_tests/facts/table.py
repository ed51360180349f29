"""What `make facts` prints: every statement with its verdict, and those that no longer hold, or never did, at the end."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Collection, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from parity_tests.facts import FACTS
from parity_tests.facts.record import Verdict, judge
from parity_tests.facts.stated import STATED
from parity_tests.harness import numerics
from parity_tests.harness.report import versions
from parity_tests.seeds.items import SECTIONS

WIDTH = 100
NO_LONGER = {"changed": "yellow", "not yet": "yellow", "never held": "yellow"}
WRONG = {"contradicted": "bold red", "holds again": "bold red"}
STYLES = {"holds": "green", **NO_LONGER, "not here": "dim", **WRONG}


def _word(verdict: Verdict) -> Text:
    changed = verdict.fact.changed
    word = changed.when if verdict.word in NO_LONGER and changed is not None else verdict.word
    return Text(word, STYLES[verdict.word])


def _statements(verdicts: Sequence[Verdict]) -> Table:
    found = versions()
    title = f"What the seeds say of torch {found['torch']} and transformers {found['transformers']}"
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), width=WIDTH)
    table.add_column("place", ratio=24)
    table.add_column("statement", ratio=58)
    table.add_column("verdict", ratio=18)
    place = ""
    for verdict in verdicts:
        table.add_row("" if verdict.fact.place == place else verdict.fact.place, verdict.fact.says, _word(verdict))
        place = verdict.fact.place
    return table


def _by_seed(verdicts: Sequence[Verdict]) -> Table:
    """How many statements of each seed are shown, contradicted with what is so instead, and stated alone."""
    table = Table(title="By seed", title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("seed", "items with tests", "facts that hold", "that do not, with what is so", "not here", "stated alone"):
        table.add_column(heading, justify="left" if heading == "seed" else "right")
    for seed in ("R1", "R2"):
        words = [verdict.word for verdict in verdicts if verdict.fact.place.startswith(seed)]
        items = sum(len(section.items) for section in SECTIONS if section.seed == seed)
        holds, absent = words.count("holds"), words.count("not here")
        alone = sum(stated.place.startswith(seed) for stated in STATED)
        table.add_row(seed, *map(str, (items, holds, len(words) - holds - absent, absent, alone)))
    return table


def _noted(verdicts: Sequence[Verdict], words: Collection[str], heading: str) -> list[RenderableType]:
    """The statements with one of these verdicts, each with what is so instead."""
    chosen = [verdict for verdict in verdicts if verdict.word in words]
    lines: list[RenderableType] = [Text(f"\n{heading}", "bold")] if chosen else []
    for verdict in chosen:
        lines += [
            Text(f"{verdict.fact.id}  {verdict.fact.place}: {verdict.fact.says}"),
            Padding(Text(verdict.note, STYLES[verdict.word]), (0, 0, 0, 4)),
        ]
    return lines


def show(verdicts: Sequence[Verdict], console: Console) -> None:
    """Print the table, then what needs an explanation, then the counts."""
    console.print(_statements(verdicts))
    for words, heading in (
        (("not here",), "Not here"),
        (NO_LONGER, "Not so, and known not to be"),
        (WRONG, "NOT AS RECORDED"),
    ):
        for line in _noted(verdicts, words, heading):
            console.print(line)
    console.print(Text("\nStated, and not asserted", "bold"))
    for stated in STATED:
        console.print(Text(f"{stated.place}: {stated.quote}"))
        console.print(Padding(Text(stated.why, "dim"), (0, 0, 0, 4)))
    console.print(_by_seed(verdicts))
    counts = Counter(verdict.word for verdict in verdicts)
    told = ", ".join(f"{n} {'hold' if word == 'holds' else word}" for word in STYLES if (n := counts[word]))
    console.print(Text(f"\n{len(verdicts)} statements: {told}", "bold red" if any(v.wrong for v in verdicts) else "bold"))


def main() -> int:
    """Put every statement to the installed versions. Returns 1 when any of them is not as recorded."""
    numerics.share(1)
    warnings.simplefilter("ignore")  # torch and transformers advise on tiny models; nothing of it is a verdict
    verdicts = [judge(fact) for fact in FACTS]
    show(verdicts, Console(width=WIDTH))
    return int(any(verdict.wrong for verdict in verdicts))
