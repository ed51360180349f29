"""MLA absorbed and expanded are one function: in prefill, in steps, and over a cache of latents."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from parity_tests.families.deepseek_v3 import FAMILY
from parity_tests.harness.batches import from_ids, tokens
from parity_tests.harness.case import Case, reads, reference
from parity_tests.harness.compare import BAR, largest_relative
from parity_tests.harness.record import Backend
from parity_tests.harness.schedules import SCHEDULES, read_ours
from reference_impl.models.deepseek_v3 import DeepseekV3Model

LENGTHS = (1, 2, 3, 17, 64, 131, 300)


def both(variant: str) -> tuple[DeepseekV3Model, Any]:
    """A variant's model in its expanded form, and a copy that shares its weights in the absorbed one."""
    model = reference(Case("deepseek_v3", variant, "f64", Backend("")))
    other = DeepseekV3Model(model.config)
    other.load_state_dict(model.state_dict(), assign=True)
    return model, other.absorb().eval()


@pytest.mark.parametrize("variant", FAMILY.variants)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_absorbed_equals_expanded_over_a_cache(variant: str, schedule: str) -> None:
    expanded, absorbed = both(variant)
    for batch in reads(Case("deepseek_v3", variant, "f64", Backend(""))).cached():
        (a, cache), (b, latents) = (read_ours(model, batch, SCHEDULES[schedule]) for model in (expanded, absorbed))
        assert largest_relative(batch.kept(b), batch.kept(a)) < BAR
        for held, other in zip(cache.layers, latents.layers, strict=True):
            assert all(largest_relative(y, x) < BAR for x, y in zip(held.held(), other.held(), strict=True))


@pytest.mark.parametrize("length", LENGTHS)
def test_absorbed_equals_expanded_at_every_length(length: int) -> None:
    expanded, absorbed = both("yarn")
    ids = tokens("absorbed", (1, length), expanded.config.vocab_size)
    last = from_ids("absorbed", ids)
    whole, steps = (length,), (max(length - 1, 1), *([1] if length > 1 else []))
    for sizes in (whole, steps):
        a, b = (read_ours(model, last, sizes)[0] for model in (expanded, absorbed))
        assert largest_relative(b, a) < BAR


def test_the_cache_holds_576_numbers_a_token_at_the_published_size() -> None:
    expanded, _ = both("base")
    config = expanded.config
    _, cache = read_ours(expanded, from_ids("one", torch.zeros(1, 1, dtype=torch.long)), (1,))
    latent, rope_key = cache.layers[0].held()
    assert latent.shape == (1, 1, 1, config.kv_lora_rank)
    assert rope_key.shape == (1, 1, 1, config.d_rope)
    assert 512 + 64 == 576  # kv_lora_rank + d_rope as published
