"""`reference_impl/SEEDS.md`: where everything that the seeds describe is, and how to see that it is right."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import reference_impl
from parity_tests.seeds.carried import frozen
from parity_tests.seeds.items import SECTIONS
from parity_tests.seeds.record import Section

PAGE = Path(reference_impl.__file__).with_name("SEEDS.md")

HEADING = """# The seeds, section by section

R1 is "Attention 及各种变体", R2 "Transformer" by the example of LLaMA. Under each heading, in the seed's words: where it is in
the reference, and item by item what is shown of it, with a test to run. `make rows` runs all of them and says what each comes
to. Made from `parity_tests/seeds` by `make rows ARGS=--freeze`.
"""


def find(symbol: str) -> Any:
    """What a symbol of a section is: `models.llama:LlamaLayer`. Errors: AttributeError when there is none."""
    module, name = symbol.split(":")
    return getattr(importlib.import_module(f"reference_impl.{module}"), name)


def _place(symbol: str) -> str:
    """A link to where it begins."""
    found = inspect.unwrap(find(symbol))  # of what checks its shapes
    path = Path(inspect.getsourcefile(found) or "").relative_to(Path(reference_impl.__file__).parent)
    return f"[`{symbol.split(':')[1]}`]({path.as_posix()}#L{inspect.getsourcelines(found)[1]})"


def _section(section: Section, listed: dict[str, dict[str, Any]]) -> Iterator[str]:
    yield f"## {section.seed}, {section.heading}\n"
    yield ", ".join(map(_place, section.symbols)) + "\n"
    yield "| item | what is shown | run |"
    yield "|---|---|---|"
    for item in section.items:
        run = listed.get(item.id, {}).get("run", "")
        yield f"| {item.id} | {item.says} | `pytest '{run}'` |"
    yield ""


def page() -> str:
    """The page, in Markdown."""
    listed = frozen()
    return "\n".join([HEADING, *(line for section in SECTIONS for line in _section(section, listed))]).rstrip() + "\n"


def documented(symbol: str) -> str:
    """What the reference says of a symbol: its own docstring, and its module's."""
    found = find(symbol)
    module = importlib.import_module(found.__module__)
    return f"{found.__doc__ or ''}\n{module.__doc__ or ''}"
