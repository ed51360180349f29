"""MLA absorbed and expanded are one function: in prefill, in steps, and over a cache of latents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from parity_tests.families.deepseek_v3 import FAMILY
from parity_tests.harness.batches import from_ids, tokens
from parity_tests.harness.case import Case, reads, reference
from parity_tests.harness.compare import BAR, largest_relative
from parity_tests.harness.record import Backend
from parity_tests.harness.schedules import SCHEDULES, read_ours
from parity_tests.harness.shapes import unchecked
from reference_impl.cache import LayerCache
from reference_impl.models.deepseek_v3 import DeepseekV3Model
from weight_mapping.config import parse_config

PUBLISHED = Path(__file__).parent / "fixtures/configs/published/DeepSeek-V3.json"
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
    """One layer of the released size, without memory for its weights; where the heads of MHA would be 40960."""
    raw = json.loads(PUBLISHED.read_text())
    raw.pop("quantization_config")
    family, said = parse_config({**raw, "num_hidden_layers": 1, "first_k_dense_replace": 1}, "hf")
    config: Any = said
    seen: list[int] = []
    with torch.device("meta"), unchecked():
        model: Any = family.model(config)
        attn = model.layers[0].attn
        cache = LayerCache()
        for start, end in ((0, 1), (1, 3), (3, 8)):
            table = torch.empty(1, end - start, config.d_rope // 2)
            attn(torch.empty(1, end - start, config.d_model), (table, table), torch.ones(1, 1, 1, end).bool(), cache)
            seen.append(sum(held.numel() for held in cache.held()) // end)
    assert seen == [576] * 3
    per_head = attn.kv_b_proj.out_features // attn.n_heads + config.d_rope
    assert attn.n_heads * per_head == 40960
