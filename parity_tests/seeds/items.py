"""All items, by section of the seeds. `parity_tests/seeds/record.py` says how to read one."""

from __future__ import annotations

from parity_tests.seeds import items_of_r1, items_of_r2
from parity_tests.seeds.record import Item, Section

SECTIONS: tuple[Section, ...] = (*items_of_r1.SECTIONS, *items_of_r2.SECTIONS)
ITEMS: tuple[Item, ...] = tuple(item for section in SECTIONS for item in section.items)
