"""What an item of the seeds is, and which tests carry it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import translate
from functools import cached_property


def alternatives(pattern: str) -> list[str]:
    """`a/{b,c}/d` as a/b/d and a/c/d."""
    found = re.search(r"\{([^{}]*)\}", pattern)
    if found is None:
        return [pattern]
    begin, end = pattern[: found.start()], pattern[found.end() :]
    return [each for middle in found.group(1).split(",") for each in alternatives(begin + middle + end)]


@dataclass(frozen=True)
class Item:
    """Something that has to be shown. id: `ROW.name`. shown_by: patterns of kinds of tests, see `carried.kind_of_test`; `{a,b}`
    are alternatives, each of which has to have a test.
    """

    id: str
    says: str
    shown_by: tuple[str, ...]

    @property
    def row(self) -> str:
        return self.id.split(".")[0]

    @cached_property
    def patterns(self) -> dict[str, re.Pattern[str]]:
        """Each alternative, to be matched."""
        return {one: re.compile(translate(one)) for pattern in self.shown_by for one in alternatives(pattern)}

    def shown(self, kind: str) -> bool:
        """Whether a kind of tests carries it."""
        return any(pattern.match(kind) for pattern in self.patterns.values())


@dataclass(frozen=True)
class Section:
    """A section of a seed: its heading in the seed's words, and what of the reference it is, as `module:name`."""

    seed: str
    heading: str
    symbols: tuple[str, ...]
    items: tuple[Item, ...]


def item(id: str, says: str, *shown_by: str) -> Item:
    """Shorter, for there are many."""
    return Item(id, says, shown_by)
