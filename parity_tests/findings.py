"""What was found in transformers, as a page: `parity_tests/FINDINGS.md`, made of the records and of nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from parity_tests.families import FAMILIES
from parity_tests.fixtures import BASELINE
from parity_tests.harness.case import Case
from parity_tests.harness.differences import instead, releases
from parity_tests.harness.points import config_of, raw_config_of
from parity_tests.harness.record import FOUND_HERE, Family, Known
from parity_tests.legal import BROKEN
from parity_tests.test_findings import FINDINGS

PAGE = Path(__file__).with_name("FINDINGS.md")

BESIDE = (
    Known(
        name="an untied head of BERT or FNet that 4.57.6 saved loads with a bias of zero",
        smallest="save there with `tie_word_embeddings=False`, load here",
        sites=(),
        since="5.0.0",
        link=FOUND_HERE,
    ),
    Known(
        name="an untied T5 that 5 saved is read as tied by 4.57.6, without an error: its config.json says so",
        smallest="save in 5.24.0, load in 4.57.6",
        sites=(),
        until="5.0.0",
        link=FOUND_HERE,
    ),
    Known(
        name="torch 2.13: the fast path of TransformerEncoderLayer reads float masks as booleans, and ignores is_causal=True "
        "without a mask, so that every token sees the future",
        smallest="`nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()` under `no_grad`",
        sites=(),
        link=FOUND_HERE,
    ),
)
"""What no record can hold: it shows between two releases alone, or is torch's, of which `test_transformer.py` asserts it."""

HEADING = """# Findings

What transformers computes otherwise than its configs or documentation say, or than it computes itself another way. The
reference does not imitate it. This page is made from the records (`make known ARGS=--page`), and a test holds it to them.

What a comparison can show is a known difference of its family, strict: a test fails once it is mended. What needs no fixture is
reproduced in `test_findings.py` and `test_legal.py`, as strictly. What shows between two releases alone stands only here.
"""


@dataclass
class Finding:
    """One thing that was found, wherever it shows."""

    name: str
    families: list[str] = field(default_factory=list)
    ranges: list[str] = field(default_factory=list)
    smallest: str = ""
    more: list[str] = field(default_factory=list)
    here: bool = False

    def add(self, families: Iterable[str], known: Known, smallest: str, more: str = "") -> None:
        """Another record of it."""
        self.families += [name for name in families if name not in self.families]
        self.ranges += [said for said in [releases(known)] if said not in self.ranges]
        self.more += [said for said in (more, known.link) if said and said not in (*self.more, FOUND_HERE)]
        self.smallest = self.smallest or smallest
        self.here = self.here or known.in_release(baseline())


def baseline() -> str:
    """The release of transformers that fixtures/baseline.txt pins."""
    pins = dict(line.split("==") for line in BASELINE.read_text().splitlines() if "==" in line and line[0] != "#")
    return pins["transformers"]


def shown_by(family: Family, known: Known) -> str:
    """The first fixture that has it, and where it shows there."""
    for variant in family.variants:
        case = Case(family.name, variant, "f64", family.backends[0])
        if known.where(config_of(case)) and known.says(raw_config_of(case)) and known.names(variant):
            return f"the fixture `{family.name}/{variant}`, at {known.sites[0]}" if known.sites else ""
    return ""


def _records() -> Iterator[tuple[list[str], Known, str, str]]:
    """Families, record, smallest case, and what transformers does instead."""
    for family in FAMILIES.values():
        for known in family.known:
            yield [family.name], known, known.smallest or shown_by(family, known), instead(known)
    for reproduce, known in FINDINGS.items():
        yield [], known, known.smallest or f"`{reproduce.__name__}` of `test_findings.py`", ""
    for broken in BROKEN:
        known = Known(name=broken.what, sites=(), link=FOUND_HERE, since=broken.since, until=broken.until)
        yield list(broken.families), known, f"`{broken.change}`", ""
    for known in BESIDE:
        yield [], known, known.smallest, ""


def collect() -> list[Finding]:
    """All of them, those of the pinned release first; what several families have, or several ranges of releases, once."""
    found: dict[str, Finding] = {}
    for families, known, smallest, more in _records():
        found.setdefault(known.name, Finding(known.name)).add(families, known, smallest, more)
    return sorted(found.values(), key=lambda finding: not finding.here)


def _table(findings: Sequence[Finding]) -> Iterator[str]:
    yield "| what | where | releases | smallest case | what it does instead, and where to read of it |"
    yield "|---|---|---|---|---|"
    for finding in findings:
        where = ", ".join(finding.families) or "transformers"
        cells = (finding.name, where, "; ".join(finding.ranges), finding.smallest, "; ".join(finding.more))
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def page() -> str:
    """The page, in Markdown."""
    findings, version = collect(), baseline()
    here = [finding for finding in findings if finding.here]
    others = [finding for finding in findings if not finding.here]
    parts = [HEADING, f"## In transformers {version}: {len(here)}\n", *_table(here)]
    parts += ["", f"## In other releases: {len(others)}\n", *_table(others)]
    return "\n".join(parts) + "\n"


