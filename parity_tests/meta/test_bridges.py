"""What releases do otherwise is met by asking for a feature: stand-ins with the manners of older ones, under any release."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from parity_tests.harness import hf
from parity_tests.harness.batches import from_ids
from parity_tests.harness.record import Backend, Call, Unit


class Attention(nn.Module):
    """Returns (output, probabilities, cache), the probabilities only when it is told to."""

    def forward(self, x: Tensor, attention_mask: Tensor, output_attentions: bool) -> tuple[Tensor, Tensor | None, None]:
        return x, (attention_mask[..., : x.shape[1]] == 0).double() if output_attentions else None, None


class Rotary(nn.Module):
    """Dynamic: keeps its formula from its construction, grows with the sequence, and never goes back."""

    def __init__(self) -> None:
        super().__init__()
        self.rope_type = "dynamic"
        self.max_seq_len_cached = 4
        self.rope_init_fn = lambda length: torch.arange(1, 4, dtype=torch.float32) / length
        self.register_buffer("inv_freq", self.rope_init_fn(4), persistent=False)
        self.original_inv_freq = self.inv_freq

    def forward(self, x: Tensor, position_ids: Tensor) -> Tensor:
        length = int(position_ids.max()) + 1
        if length > self.max_seq_len_cached:
            self.inv_freq = self.rope_init_fn(length)
        return self.inv_freq.to(torch.float32)


class Model(nn.Module):
    """Masks reach one key further than there are keys, and caches are tuples."""

    def __init__(self, attention: str) -> None:
        super().__init__()
        self.config = SimpleNamespace(_attn_implementation=attention)
        self.embed = nn.Embedding(7, 2)
        self.rotary = Rotary()
        self.attn = Attention()

    def forward(self, input_ids: Tensor, use_cache: bool, output_attentions: bool = False) -> Any:
        length = input_ids.shape[1]
        mask = torch.full((length, length + 1), -torch.inf).triu(1)[None, None]
        x = self.embed(input_ids)
        self.rotary(x, torch.arange(length)[None])
        self.attn(x, attention_mask=mask, output_attentions=output_attentions)
        return SimpleNamespace(logits=x, past_key_values=((x, -x),))


UNITS = [
    Unit(name="rope", hf="rotary", level="block", sites=()),
    Unit(name="layers.0.attn", hf="attn", level="block", sites=(), layer=0),
]


def traced(model: nn.Module, length: int) -> dict[str, Call]:
    batch = from_ids("", torch.arange(length)[None] % 7)
    return hf.trace(model.double(), "f64", batch, UNITS)


def test_a_mask_beyond_the_keys_is_cut_to_them() -> None:
    call = traced(Model("eager"), 5)["layers.0.attn"]
    assert call.argument(1, "attention_mask").shape == (1, 1, 5, 5)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_eager_attention_is_asked_for_its_probabilities_and_no_other(attention: str) -> None:
    call = traced(Model(attention), 5)["layers.0.attn"]
    assert (call.output[1] is not None) == (attention == "eager")


def test_a_cache_of_tuples_is_read() -> None:
    call = traced(Model("eager"), 5)["layers.0.attn"]
    assert call.cached is not None
    assert torch.equal(call.cached[0], call.tensor)
    assert torch.equal(call.cached[1], -call.tensor)


def test_a_formula_that_a_module_keeps_stays_in_float32_and_is_put_back() -> None:
    model = Model("eager").double()
    formula = model.rotary.rope_init_fn
    output = traced(model, 6)["rope"].output
    assert model.rotary.rope_init_fn is formula
    assert output.dtype == torch.float64  # under the lens
    assert torch.equal(output, formula(6).double())


def test_a_table_that_never_goes_back_is_put_back() -> None:
    model = Model("eager").double()
    before = traced(model, 3)["rope"].output
    grown = traced(model, 6)["rope"].output
    assert not torch.equal(grown, before)
    assert torch.equal(traced(model, 3)["rope"].output, before)


@pytest.mark.parametrize(
    "cache",
    [
        ((torch.zeros(1), torch.ones(1)), (torch.full((1,), 2.0), torch.full((1,), 3.0))),
        SimpleNamespace(key_cache=[torch.zeros(1), torch.full((1,), 2.0)], value_cache=[None, torch.full((1,), 3.0)]),
        SimpleNamespace(layers=[None, SimpleNamespace(keys=torch.full((1,), 2.0), values=torch.full((1,), 3.0))]),
    ],
    ids=["tuples", "two lists", "layers"],
)
def test_every_form_of_a_cache_is_read(cache: Any) -> None:
    held = hf.cached(cache, 1)
    assert held is not None
    assert [float(x) for x in held] == [2.0, 3.0]


@pytest.mark.parametrize("name", ["cache", "past_key_values"])
def test_the_cache_of_an_output_has_two_names(name: str) -> None:
    held = object()
    assert hf.cache_of(SimpleNamespace(**{name: held})) is held


def test_a_class_that_a_release_lacks_is_absent() -> None:
    with pytest.raises(hf.Absent, match="has no NobodyForCausalLM"):
        hf.build("NobodyForCausalLM", Path(), "f64", Backend("eager"))
