"""RoPE's scalings reach every rotary family, and each variant of them can notice."""

from __future__ import annotations

import pytest
import torch

from parity_tests.families import FAMILIES
from parity_tests.families.scaling_deviations import ALONE
from parity_tests.fixtures import scalings
from parity_tests.harness.case import Case, reference
from parity_tests.harness.compare import BAR, largest_relative
from parity_tests.harness.points import config_at
from parity_tests.harness.record import Backend, Family
from weight_mapping.rope import SCALINGS

ROTARY = [name for name, record in FAMILIES.items() if hasattr(config_at(name, next(iter(record.variants))), "rope")]
LENGTHS = (19, 45, 180)
"""Short of every original length, beyond it, and beyond max_position_embeddings."""


def scaled(family: Family) -> list[str]:
    return [variant for variant in family.variants if ALONE.concerns(variant)]


def test_every_scaling_of_the_mapping_has_a_variant() -> None:
    """But for the one that no config.json can say, which GGUF keeps in a tensor."""
    assert {str(parts(4)["rope_type"]) for parts in scalings.SCALINGS.values()} == set(SCALINGS) - {"divided"}


@pytest.mark.parametrize("family", ROTARY)
def test_every_rotary_family_has_every_scaling(family: str) -> None:
    assert set(scaled(FAMILIES[family])) == set(scalings.variants({}))


@pytest.mark.parametrize("family", ROTARY)
def test_with_and_without_the_width_of_a_head(family: str) -> None:
    has = {name: "head_dim" in FAMILIES[family].variants[name] for name in scaled(FAMILIES[family])}
    assert all(has[name] != name.endswith("-bare") for name in has)


@pytest.mark.parametrize("family", ROTARY)
def test_every_departure_of_a_scaling_shows_in_every_variant_of_it(family: str) -> None:
    """In the tables; that those reach the logits is shown of one variant of each."""
    record = FAMILIES[family]
    blind = []
    for variant in scaled(record):
        model = reference(Case(family, variant, "f64", Backend("")))
        for deviation in record.deviations:
            if deviation.site == "rope.cos" and deviation.concerns(variant):
                wrong = deviation.of(model)
                moved = []
                for length in LENGTHS:
                    positions = torch.arange(length)[None]
                    before, after = (side.rope(positions, torch.float64)[0] for side in (model, wrong))
                    moved.append(largest_relative(after, before))
                if max(moved) < 1e6 * BAR:
                    blind.append(f"{variant}: {deviation.name}")
    assert not blind
